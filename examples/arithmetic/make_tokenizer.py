"""Make the tokenizer and the model description of the example policy: `python -m examples.arithmetic.make_tokenizer`.

Every digit is a token of its own, so that numbers can be copied digit by digit. Text is split at newlines and digits,
not at spaces: lines that never change (the tool's schema, the frame of a call) become one token each, and a whole episode
takes about 65 tokens. Any other text falls back to shorter pieces, in the end to bytes.
"""

import argparse
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from agentrl.tools.python_tool import PYTHON_TOOL_SCHEMA
from agentrl.types import Message
from examples.arithmetic.demonstrations import demonstrations

HERE = Path(__file__).resolve().parent
PAD_TOKEN, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
SPECIAL_TOKENS = (PAD_TOKEN, "<|im_start|>", END_OF_TURN)
"""Special tokens, in the order of their ids from 0."""
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCABULARY_SIZE = 1024
CONTEXT_TOKENS = 2048
NUM_TRAINING_DIALOGUES = 4000


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the byte-pair encoding on rendered demonstrations."""
    dialogues = islice(demonstrations(0, frozenset()), NUM_TRAINING_DIALOGUES)
    return train_tokenizer(dialogues, PYTHON_TOOL_SCHEMA.as_template_dict(), split_at="\n")


def train_tokenizer(
    dialogues: Iterable[list[Message]], tool: dict[str, Any] | None, *, split_at: str
) -> PreTrainedTokenizerFast:
    """Train a byte-pair encoding on dialogues about one tool or none, as the policy reads them.

    Args:
        dialogues: what it is trained on.
        tool: what the system prompt of each of them lists.
        split_at: regular expression; no token goes on behind a match, nor across a digit.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train_encoding(_rendered(dialogues, tool), split_at),
        eos_token=END_OF_TURN,
        pad_token=PAD_TOKEN,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = _chat_template()
    return tokenizer


def make_model_config() -> Qwen3Config:
    """Describe a Qwen3 model that fits the task and little else: 0.7 million parameters."""
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END_OF_TURN),
        pad_token_id=SPECIAL_TOKENS.index(PAD_TOKEN),
    )


def _chat_template() -> str:
    return (HERE / "chat_template.jinja").read_text()


def _rendered(dialogues: Iterable[list[Message]], tool: dict[str, Any] | None) -> list[str]:
    renderer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    renderer.chat_template = _chat_template()
    return [_render(renderer, dialogue, tool) for dialogue in dialogues]


def _render(renderer: PreTrainedTokenizerFast, dialogue: list[Message], tool: dict[str, Any] | None) -> str:
    tools: list[Any] | None = [tool] if tool else None
    text = renderer.apply_chat_template(dialogue, tools=tools, tokenize=False)
    assert isinstance(text, str)
    return text


def _train_encoding(texts: list[str], split_at: str) -> Tokenizer:
    encoding = Tokenizer(models.BPE())
    encoding.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split_at), "merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    encoding.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The trainer does not know that these are cut out before the merges apply; left in, they would take part in them.
    cut = re.compile("|".join(re.escape(token) for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS)))
    encoding.train_from_iterator((piece for text in texts for piece in cut.split(text)), trainer)
    # Markup is text that the policy says, not a special token: decoding must never skip it.
    encoding.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    return encoding


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Write a model folder without weights: tokenizer and config.json.")
    parser.add_argument("--folder", type=Path, default=HERE / "policy")
    folder: Path = parser.parse_args().folder
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model_config().save_pretrained(folder)
    print(f"wrote {folder}: {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
