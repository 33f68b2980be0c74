"""Real chat templates (shipped with trl, and ours) on a small byte-level tokenizer that knows their special tokens."""

import re
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
)
OWN_TEMPLATES = Path(__file__).resolve().parent.parent / "configs" / "templates"
_TAGS = re.compile(r"<\|[^<>|\s]+\|?>|<[a-z_]+\|>|<｜[^<>｜]+｜>|<end_of_turn>|<start_of_turn>")
"""Special tokens, as the templates of most families write them."""
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""Split of text before merging, in the tokenizers of Qwen2 and Llama 3."""

TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": "python_code_with_standard_io",
        "description": "Run Python code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "input": {"type": "string"}},
            "required": ["code", "input"],
        },
    },
}


def make_tokenizer(template: str, *, without: str = "") -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes plus the special tokens of the Qwen and Llama families, with a `template` of trl or ours."""
    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    # One merge, so that a boundary between two pieces of text can go wrong: a byte-only vocabulary could not show it.
    newline, double = "Ċ", "ĊĊ"
    vocab[double] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=[(newline, newline)]))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    own = OWN_TEMPLATES / f"{template}.jinja"
    source = own if own.is_file() else files("trl").joinpath("chat_templates", f"{template}.jinja")
    special = dict.fromkeys([*SPECIAL_TOKENS, *_TAGS.findall(source.read_text())])
    core.add_special_tokens([AddedToken(token, special=True) for token in special if token != without])
    core.add_tokens([AddedToken(token, normalized=False) for token in ("<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = source.read_text()
    return tokenizer
