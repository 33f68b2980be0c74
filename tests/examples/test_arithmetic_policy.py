import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.models.tokenizer import load_tokenizer
from agentrl.tools.loader import load_tool_file
from agentrl.tools.python_tool import PYTHON_TOOL_SCHEMA
from agentrl.types import Message
from examples.arithmetic.demonstrations import demonstrations, prompt_messages
from examples.arithmetic.generate import validation_problems
from examples.arithmetic.make_tokenizer import make_model_config, make_tokenizer
from examples.arithmetic.problems import Problem
from tests.examples.sampled_turns import policy_on_one_thread, sample_turns

EXAMPLE = SHIPPED_FOLDER / "examples" / "arithmetic"
TOOLS = [PYTHON_TOOL_SCHEMA.as_template_dict()]
QWEN25_TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(str(EXAMPLE / "policy"))


@pytest.fixture(scope="module")
def tokens(tokenizer: PreTrainedTokenizerFast) -> ChatTokens:
    return ChatTokens(tokenizer, TOOLS)


@pytest.fixture(scope="module")
def policy() -> Iterator[PreTrainedModel]:
    yield from policy_on_one_thread(EXAMPLE)


def complete(
    policy: PreTrainedModel, tokens: ChatTokens, problems: list[Problem], *, start: str, temperature: float
) -> list[str]:
    prompts = [prompt_messages(problem) for problem in problems]
    tokenizer = load_tokenizer(str(EXAMPLE / "policy"))
    return sample_turns(policy, tokenizer, tokens, prompts, start=start, temperature=temperature)


def called_program(text: str) -> str | None:
    calls = read_calls(FORMATS["hermes"], text, {}, id_prefix="0").calls
    return calls[0].arguments.get("code") if calls else None


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_the_template_renders_as_that_of_qwen25(tokenizer: PreTrainedTokenizerFast, tools: list[Any] | None) -> None:
    two_calls: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1, and 2 + 2?"},
        {
            "role": "assistant",
            "content": "Two calls:",
            "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": {"numbers": [n, n]}}} for n in (1, 2)
            ],
        },
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "2 and 4."},
        {"role": "user", "content": "Thanks."},
    ]
    for dialogue in [two_calls, *islice(demonstrations(5, frozenset()), 50)]:
        ours, reference = (
            tokenizer.apply_chat_template(
                dialogue, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
            )
            for template in (None, QWEN25_TEMPLATE.read_text())
        )
        assert ours == reference


def test_the_template_only_appends(tokens: ChatTokens) -> None:
    assert not tokens.rewrites_history


def test_every_digit_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("1234567890", add_special_tokens=False)
    assert [tokenizer.decode([token]) for token in ids] == list("1234567890")


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "naïve 你好\n\n\tdef f(x):\r\n    return x ** 12 \x00 <tool_call> 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_committed_tokenizer_is_the_one_that_the_command_makes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / "policy" / name).read_bytes(), f"{name}: see the README"


def test_the_model_is_the_described_one(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    described = make_model_config()
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings", "eos_token_id"):
        assert getattr(policy.config, name) == getattr(described, name), name
    assert described.vocab_size == len(tokenizer)
    assert (described.eos_token_id, described.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert policy.num_parameters() < 1_000_000


def test_the_tool_yaml_and_the_tool_itself_give_the_prompt_that_the_policy_knows(
    tokenizer: PreTrainedTokenizerFast, tokens: ChatTokens
) -> None:
    (tool,) = load_tool_file(SHIPPED_FOLDER / "tool_configs" / "python_tool_config.yaml")
    assert tool.tool_schema is not None
    messages = prompt_messages(validation_problems()[0])
    from_yaml = ChatTokens(tokenizer, [tool.tool_schema]).prompt(messages)
    assert from_yaml == tokens.prompt(messages)
    # The lines of the schema are one token each; a changed schema is bytes to this policy, which must then be made again.
    assert len(from_yaml) < 64


def test_episodes_are_short(tokens: ChatTokens) -> None:
    lengths = [len(tokens.conversation(dialogue)[0]) for dialogue in islice(demonstrations(5, frozenset()), 500)]
    assert sum(lengths) / len(lengths) < 80
    assert max(lengths) < 170


def test_the_likeliest_call_of_the_policy_is_the_exact_one(policy: PreTrainedModel, tokens: ChatTokens) -> None:
    problems = validation_problems()
    texts = complete(policy, tokens, problems, start="<tool_call>", temperature=0.0)
    pairs = zip(texts, problems, strict=True)
    exact = [called_program(text) == f"print({problem.expression})" for text, problem in pairs]
    assert sum(exact) / len(exact) >= 0.97


def test_the_policy_starts_with_a_poor_strategy(policy: PreTrainedModel, tokens: ChatTokens) -> None:
    torch.manual_seed(0)
    problems = validation_problems()
    texts = complete(policy, tokens, problems, start="", temperature=1.0)
    right_calls = right_guesses = guesses = 0
    for text, problem in zip(texts, problems, strict=True):
        right_calls += called_program(text) == f"print({problem.expression})"
        guess = re.fullmatch(r"<answer>\\boxed\{(-?\d+)\}</answer>", text)
        guesses += guess is not None
        right_guesses += guess is not None and int(guess[1]) == problem.answer
    assert 0.25 < right_calls / len(problems) < 0.5
    assert 0.2 < guesses / len(problems) < 0.5
    assert right_guesses / guesses < 0.1
