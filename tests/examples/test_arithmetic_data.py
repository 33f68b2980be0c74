import json
import re
from itertools import islice, pairwise
from pathlib import Path

import pytest

from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.tools.base import Episode
from agentrl.tools.executor import ToolExecutor
from agentrl.types import Deadline, Message, ToolStatus
from examples.arithmetic import generate
from examples.arithmetic.demonstrations import MIXTURE, demonstrations, prompt_messages
from examples.arithmetic.problems import WORDINGS, distinct_problems, fill

EXAMPLE = Path(generate.__file__).parent


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def questions(file: Path) -> list[str]:
    return [row["prompt"][-1]["content"] for row in rows(file)]


def dialogues(number: int) -> list[list[Message]]:
    return list(islice(demonstrations(5, frozenset()), number))


def last_answer(dialogue: list[Message]) -> str:
    (answer,) = re.findall(r"<answer>\\boxed\{(-?\d+)\}</answer>", dialogue[-1]["content"])
    return answer


def test_the_command_writes_the_committed_problems(tmp_path: Path) -> None:
    generate.write_problems(tmp_path)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes(), f"{name}: make it again (README)"


def test_training_and_validation_share_no_question() -> None:
    train, validation = questions(EXAMPLE / "train.jsonl"), questions(EXAMPLE / "validation.jsonl")
    assert (len(train), len(validation)) == (2048, 256)
    assert len(set(train) | set(validation)) == len(train) + len(validation)


def test_every_answer_is_the_exact_result_of_the_numbers_in_the_question() -> None:
    for problem in islice(distinct_problems(3), 2000):
        numbers = tuple(int(text) for text in re.findall(r"\d+", problem.question))
        assert numbers == problem.numbers
        exact = fill(problem.form.replace("//", "/"), numbers)
        assert eval(exact) == problem.answer, problem.question
        assert problem.answer >= 0


def test_every_wording_is_used_and_fits_its_form() -> None:
    seen = {problem.form for problem in islice(distinct_problems(3), 500)}
    assert seen == set(WORDINGS)
    for form, wordings in WORDINGS.items():
        for wording in wordings:
            assert re.findall(r"\{[abc]\}", wording) == re.findall(r"\{[abc]\}", form), wording


def test_demonstrations_are_the_same_bytes_for_the_same_command(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    generate.write_demonstrations(first, 200)
    generate.write_demonstrations(second, 200)
    assert first.read_bytes() == second.read_bytes()


def test_no_demonstration_is_about_a_held_out_question() -> None:
    held_out = frozenset(problem.question for problem in islice(distinct_problems(5), 100))
    shown = {dialogue[1]["content"] for dialogue in islice(demonstrations(5, held_out), 1000)}
    assert not shown & held_out


def test_demonstrations_start_with_what_the_policy_is_shown() -> None:
    problem = next(distinct_problems(5))
    assert dialogues(1)[0][:2] == prompt_messages(problem)


def test_about_two_demonstrations_in_five_end_right() -> None:
    answers = {problem.question: str(problem.answer) for problem in islice(distinct_problems(5), 4000)}
    right = [last_answer(dialogue) == answers[dialogue[1]["content"]] for dialogue in dialogues(4000)]
    assert sum(right) / len(right) == pytest.approx(0.425, abs=0.03)


def test_shares_of_the_strategies_sum_to_one() -> None:
    assert sum(MIXTURE.values()) == pytest.approx(1.0)


def test_an_answer_without_a_call_is_always_wrong() -> None:
    answers = {problem.question: str(problem.answer) for problem in islice(distinct_problems(5), 1000)}
    guesses = [dialogue for dialogue in dialogues(1000) if len(dialogue) == 3]
    assert len(guesses) > 250
    assert all(last_answer(dialogue) != answers[dialogue[1]["content"]] for dialogue in guesses)


async def test_unparsable_calls_are_answered_in_the_words_of_the_agent_loop() -> None:
    executor = ToolExecutor({}, timeout_s=1.0)
    episode = Episode(episode_id="0", prompt_id="0")
    num_unparsable = 0
    for dialogue in dialogues(500):
        for message, reply in pairwise(dialogue):
            if message["role"] == "assistant" and "<tool_call>" in message["content"]:
                calls = read_calls(FORMATS["hermes"], message["content"], {}, id_prefix="0").calls
                (result,) = await executor.execute(calls, episode, deadline=Deadline.after(1.0))
                assert result.status is ToolStatus.UNPARSABLE
                assert reply["content"] == result.text
                num_unparsable += 1
    assert num_unparsable > 10
