"""Reward for a program that passes tests: the last Python block of the last turn, run by the code judge."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.config.plain import read_plain_config
from agentrl.errors import ConfigError, DataError, JudgeUnavailableError
from agentrl.judge.client import InvalidSubmissionError
from agentrl.judge.connection import NO_CONTEXT, JudgeConnection, ToolContext
from agentrl.judge.stats import JudgeStats
from agentrl.types import Deadline, Prompt, Turn
from agentrl.user_code import gathered
from code_judge_server.schemas import VerdictStatus

CODE_TESTS_REWARD = "agentrl.rewards.code_tests.CodeTestsReward"

_START_TIMEOUT_S = 10.0
_PYTHON_BLOCK = re.compile(r"^```(?:python|py)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class CodeTestsConfig(JudgeConnection):
    """Keys of `reward.config`: the connection to the judge, and the scoring."""

    scoring: Literal["all", "fraction"] = "all"
    """Reward of a program that passes some tests: `all` gives it 0, `fraction` their share."""


class CodeTestsReward:
    """Runs the answer against `prompt.extra["tests"]`, a list of `{input, output}`."""

    def __init__(self, config: dict[str, Any], context: ToolContext = NO_CONTEXT) -> None:
        """Raise ConfigError for unknown or wrong keys, or without the address of a judge."""
        settings = read_plain_config(CodeTestsConfig, config, source="`reward.config`")
        self._scoring = settings.scoring
        self._client = settings.client(context.judge, owner="`reward.config`")

    async def start(self) -> None:
        """Open the session, and check that a judge answers.

        Raises:
            ConfigError: no judge answers, or they refuse the token.
        """
        await self._client.start()
        try:
            await self._client.require_one(timeout_s=_START_TIMEOUT_S)
        except JudgeUnavailableError as error:
            await self._client.aclose()
            raise ConfigError(f"`reward.config`: {error}") from error

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        """Return the reward, from 0.0 to 1.0; JudgeUnavailableError if a test got no verdict in time."""
        tests = _tests(prompt)
        code = last_python_block(turns[-1].text if turns else "")
        if code is None:
            return 0.0
        try:
            verdicts = await gathered(
                self._client.run(code, stdin=stdin, expected_output=output, deadline=deadline)
                for stdin, output in tests
            )
        except InvalidSubmissionError:
            return 0.0
        share = sum(verdict.status is VerdictStatus.ACCEPTED for verdict in verdicts) / len(tests)
        return share if self._scoring == "fraction" else float(share == 1.0)

    @staticmethod
    def check_prompt(prompt: Prompt) -> None:
        """See `agentrl.rewards.base`: the row must have `tests`."""
        _tests(prompt)

    async def aclose(self) -> None:
        """Close the session."""
        await self._client.aclose()

    def take_judge_stats(self) -> JudgeStats:
        """Return the judge client's counts since the last call."""
        return self._client.take_stats()


def last_python_block(text: str) -> str | None:
    """Return the code of the last closed ```` ```python ```` block; None if there is none."""
    blocks = _PYTHON_BLOCK.findall(text)
    return blocks[-1] if blocks else None


def _tests(prompt: Prompt) -> list[tuple[str, str]]:
    tests = prompt.extra.get("tests")
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise DataError(
            f"reward: prompt `{prompt.prompt_id}` has `tests` = {tests!r:.100}; it must be a list of "
            "`{input, output}` that is not empty"
        )
    for test in tests:
        if not isinstance(test, Mapping) or not all(isinstance(test.get(key), str) for key in ("input", "output")):
            raise DataError(
                f"reward: prompt `{prompt.prompt_id}` has a test {test!r:.100}; it must be `{{input, output}}`, both text"
            )
    return [(test["input"], test["output"]) for test in tests]
