"""The reward against a real judge."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import ConfigError, DataError, JudgeUnavailableError
from agentrl.judge.local import LocalJudge
from agentrl.rewards.code_tests import CodeTestsReward, last_python_block
from agentrl.types import Deadline, Prompt, Turn

DOUBLE = "Here:\n```python\nprint(int(input()) * 2)\n```\nDone."
DOUBLE_SMALL = "```python\nn = int(input())\nprint(n * 2 if n < 10 else n)\n```"
TESTS = [{"input": str(n), "output": str(2 * n)} for n in (1, 2, 3, 50)]


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with LocalJudge(JudgeSection(min_isolation="D", max_wall_time_s=6.0)) as running:
        yield running


async def score(judge: LocalJudge, text: str, tests: Any = TESTS, **config: Any) -> float:
    reward = CodeTestsReward({"host_addr": judge.host, "host_port": judge.port} | config)
    await reward.start()
    try:
        prompt = Prompt(prompt_id="p", messages=[], extra={"tests": tests})
        return await reward.score(prompt, (Turn(text=text),), deadline=Deadline.after(100))
    finally:
        await reward.aclose()


@pytest.mark.slow
async def test_a_program_that_passes_every_test_is_worth_one(judge: LocalJudge) -> None:
    assert await score(judge, DOUBLE) == 1.0


async def test_all_or_nothing_is_the_default_and_fractions_an_option(judge: LocalJudge) -> None:
    assert await score(judge, DOUBLE_SMALL) == 0.0
    assert await score(judge, DOUBLE_SMALL, scoring="fraction") == 0.75


@pytest.mark.parametrize(
    "text", ["no code", "```python\nprint(1)", "```python\nprint('\0')\n```", "```cpp\nint x;\n```"]
)
async def test_no_program_that_can_run_is_worth_nothing(judge: LocalJudge, text: str) -> None:
    assert await score(judge, text, scoring="fraction") == 0.0


async def test_a_program_that_crashes_or_hangs_fails_its_tests(judge: LocalJudge) -> None:
    hangs_on_50 = "```python\nn = int(input())\nwhile n == 50: pass\nprint(2 * n)\n```"
    assert await score(judge, hangs_on_50, scoring="fraction") == 0.75


def test_the_last_closed_block_is_the_program() -> None:
    text = "```python\na\n```\n```py\nb\nc\n```\n```text\nd\n```\n```python\nunclosed"
    assert last_python_block(text) == "b\nc\n"


@pytest.mark.slow
async def test_a_judge_that_is_gone_is_no_score() -> None:
    with LocalJudge(JudgeSection(min_isolation="D")) as judge:
        reward = CodeTestsReward({"host_addr": judge.host, "host_port": judge.port})
        await reward.start()
    prompt = Prompt(prompt_id="p", messages=[], extra={"tests": TESTS})
    with pytest.raises(JudgeUnavailableError):
        await reward.score(prompt, (Turn(text=DOUBLE),), deadline=Deadline.after(0.5))
    await reward.aclose()


@pytest.mark.parametrize("tests", [None, [], "[]", [{"input": "1"}], [{"input": 1, "output": 2}]])
async def test_a_prompt_without_tests_is_an_error_of_the_data(judge: LocalJudge, tests: Any) -> None:
    with pytest.raises(DataError, match="prompt `p` has"):
        await score(judge, DOUBLE, tests)


def test_an_unknown_scoring_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="`scoring` is 'most'"):
        CodeTestsReward({"host_addr": "127.0.0.1", "host_port": 1, "scoring": "most"})
