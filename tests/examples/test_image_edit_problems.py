"""The questions about edited images, the dialogues of the warm start, and the policy that it made."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.models.tokenizer import load_tokenizer
from agentrl.tools.loader import load_tool_file
from agentrl.types import Message
from examples.image_edit.generate import (
    NUM_VALIDATION_PROBLEMS,
    demonstrations,
    write_demonstrations,
    write_model_description,
    write_problems,
)
from examples.image_edit.image_worker import ImageEditWorker
from examples.image_edit.problems import Problem, all_problems
from tests.examples.sampled_turns import policy_on_one_thread, sample_turns

EXAMPLE = SHIPPED_FOLDER / "examples" / "image_edit"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(str(EXAMPLE / "policy"))


@pytest.fixture(scope="module")
def tokens(tokenizer: PreTrainedTokenizerFast) -> ChatTokens:
    [tool] = load_tool_file(EXAMPLE / "tools.yaml")
    assert tool.tool_schema is not None
    return ChatTokens(tokenizer, [tool.tool_schema])


@pytest.fixture(scope="module")
def policy() -> Iterator[PreTrainedModel]:
    yield from policy_on_one_thread(EXAMPLE)


def held_out() -> list[Problem]:
    return all_problems()[:NUM_VALIDATION_PROBLEMS]


def test_the_command_writes_the_committed_problems(tmp_path: Path) -> None:
    write_problems(tmp_path)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes(), f"{name}: make it again (README)"


def test_the_committed_tokenizer_is_the_one_that_the_command_makes(tmp_path: Path) -> None:
    write_model_description(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / "policy" / name).read_bytes(), f"{name}: see the README"


def test_no_question_is_asked_twice_and_no_demonstration_is_about_a_held_out_one() -> None:
    questions = [problem.question for problem in all_problems()]
    assert len(questions) == len(set(questions)) == 720
    shown = {dialogue[1]["content"] for dialogue in islice(demonstrations(seed=5), 500)}
    assert not shown & {problem.question for problem in held_out()}


async def test_the_answers_are_what_the_worker_of_the_run_says() -> None:
    worker = ImageEditWorker({"size": 64}, "image_edit")
    for problem in held_out():
        results = [await worker.edit(problem.question, **edit.arguments) for edit in problem.edits]
        assert str(results[-1]["contrast"]) == problem.answer, problem.question


def test_demonstrations_are_the_same_bytes_for_the_same_command(tmp_path: Path) -> None:
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for file in files:
        write_demonstrations(file, 50)
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_a_demonstration_reads_as_an_episode_of_the_run_does() -> None:
    """Its calls are what the tool takes, and the results what the worker says of them."""
    dialogue = next(messages for messages in demonstrations(seed=5) if len(messages) == 7)
    worker = ImageEditWorker({"size": 64}, "image_edit")
    edits = [call["function"]["arguments"] for message in dialogue for call in message.get("tool_calls", [])]
    results = [message["content"] for message in dialogue if message["role"] == "tool"]
    assert len(edits) == len(results) == 2
    for edit, result in zip(edits, results, strict=True):
        assert orjson.dumps(await worker.edit("e", **edit)).decode() == result


def test_prompts_are_short_as_the_policy_knows_its_tool(tokens: ChatTokens) -> None:
    assert max(len(tokens.prompt(problem.messages)) for problem in held_out()) < 80


def called_with(text: str) -> dict[str, str] | None:
    calls = read_calls(FORMATS["hermes"], text, {}, id_prefix="0").calls
    return calls[0].arguments if calls else None


def test_the_likeliest_first_call_of_the_policy_is_the_right_one(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tokens: ChatTokens
) -> None:
    prompts: list[list[Message]] = [problem.messages for problem in held_out()]
    texts = sample_turns(policy, tokenizer, tokens, prompts, start="<tool_call>", temperature=0.0)
    right = [called_with(text) == problem.edits[0].arguments for text, problem in zip(texts, held_out(), strict=True)]
    assert sum(right) / len(right) >= 0.9


def test_the_policy_starts_with_a_poor_strategy(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tokens: ChatTokens
) -> None:
    torch.manual_seed(0)
    prompts = [problem.messages for problem in held_out()]
    texts = sample_turns(policy, tokenizer, tokens, prompts, start="", temperature=1.0)
    guesses = [re.fullmatch(r"<answer>\\boxed\{0\.\d+\}</answer>", text) is not None for text in texts]
    assert 0.25 < sum(guesses) / len(guesses) < 0.55
