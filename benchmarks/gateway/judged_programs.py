"""Reward of an agent's episode that asks the run's judge: 1 if the policy's last program prints the answer."""

from typing import Any

from agentrl.config.plain import read_plain_config
from agentrl.judge.client import InvalidSubmissionError
from agentrl.judge.connection import NO_CONTEXT, JudgeConnection, ToolContext
from agentrl.types import Deadline, Prompt, Turn


class JudgedPrograms:
    """See `agentrl.rewards.base.Reward`."""

    def __init__(self, config: dict[str, Any], context: ToolContext = NO_CONTEXT) -> None:
        """Take the keys of `JudgeConnection`; `host_addr: null` asks for the run's judge."""
        settings = read_plain_config(JudgeConnection, config, source="`reward.config`")
        self._client = settings.client(context.judge, owner="`reward.config`")

    async def start(self) -> None:
        """Open the session."""
        await self._client.start()

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        """Return the reward; JudgeUnavailableError without a verdict in time."""
        programs = [call.arguments.get("code") for turn in turns for call in turn.calls]
        if not programs or not isinstance(programs[-1], str):
            return 0.0
        try:
            verdict = await self._client.run(programs[-1], deadline=deadline)
        except InvalidSubmissionError:
            return 0.0
        return float(verdict.stdout.strip() == str(prompt.answer))

    async def aclose(self) -> None:
        """Close the session."""
        await self._client.aclose()
