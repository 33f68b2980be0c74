"""Calls of an environment, which is user code: a thread of its own, time limits, and errors by their cause.

An exception of the environment blames the prompt's data or the infrastructure of one trajectory, as a reward's does; it never
ends the run by itself.
"""

import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from agentrl.environments.base import Environment, Observation
from agentrl.errors import ConfigError, RolloutError, UnexplainedError
from agentrl.rewards.score import finite_number
from agentrl.tools.base import Episode
from agentrl.tools.tool_thread import ToolThread, finish_start, finished, result_of
from agentrl.types import Deadline, Prompt, Turn
from agentrl.user_code import described

logger = logging.getLogger(__name__)
T = TypeVar("T")

_GRACE_S = 1.0
"""Extra seconds after the deadline for an environment that reports its own time-out, before it is cancelled."""


class _NoAnswerError(RolloutError):
    """A method did not return in time; what it raises itself is another cause."""


class EnvironmentThread:
    """Runs one environment; serves many episodes at once."""

    def __init__(self, environment: Environment, where: str, *, timeout_s: float) -> None:
        """Take the environment, the begin of messages, and the time limit of one answer."""
        self._environment = environment
        self._where = where
        self._timeout_s = timeout_s
        self._thread = ToolThread("the environment")

    async def start(self) -> None:
        """Start the environment.

        Raises:
            ConfigError: it raised an unexpected exception, or did not return in time.
        """
        try:
            await finish_start(self._thread.run(self._environment.start()), self._where, error_class=ConfigError)
        except BaseException:
            self._thread.close()
            raise

    async def begin(self, episode: Episode, prompt: Prompt) -> str | None:
        """Begin an episode, and return the text that opens it, if any; `end` must follow in every case.

        Raises:
            RolloutError, DataError: see `Environment.observe`; also if there is no answer in time.
        """
        text = await self._answer(self._environment.begin(episode, prompt), self._timeout_s, "begin")
        if text is None:
            return None
        return self._checked_text(text, "begin")

    async def observe(
        self, episode: Episode, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline
    ) -> Observation | None:
        """Return the answer to the last turn; None if the episode's deadline passed first.

        Raises:
            RolloutError, DataError: see `Environment.observe`; also if there is no answer in time.
        """
        allowed = deadline.capped(self._timeout_s)
        call = self._environment.observe(episode, prompt, turns, deadline=allowed)
        try:
            observation = await self._answer(call, allowed.remaining_s(), "observe")
        except _NoAnswerError:
            if deadline.expired:
                return None
            raise
        if not isinstance(observation, Observation) or not isinstance(observation.done, bool):
            raise UnexplainedError(
                f"{self._where}: `observe` returned {observation!r:.100}, and must return an "
                "`agentrl.environments.base.Observation`",
                cause="no observation",
            )
        where, reward = f"{self._where}: the reward of an observation", observation.reward
        return replace(
            observation,
            text=self._checked_text(observation.text, "observe"),
            reward=None if reward is None else finite_number(reward, where),
        )

    async def end(self, episode: Episode) -> None:
        """Free the state of an episode; a failure is logged."""
        await self._finish("end", self._environment.end(episode))

    async def aclose(self) -> None:
        """Close the environment; a failure is logged, and a call that blocks is abandoned."""
        await self._finish("aclose", self._environment.aclose())
        self._thread.close()

    async def _answer(self, call: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
        task = await finished(self._thread.run(call), limit_s + _GRACE_S)
        if task is None:
            raise _NoAnswerError(f"{self._where}: `{what}` gave no answer in {limit_s:.3g} s")
        return result_of(task, f"{self._where}: `{what}`")

    async def _finish(self, what: str, call: Coroutine[Any, Any, None]) -> None:
        task = await finished(self._thread.run(call), self._timeout_s)
        if task is None:
            logger.warning("%s: `%s` did not end in %g s", self._where, what, self._timeout_s)
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("%s: `%s` failed: %s", self._where, what, described(error))

    def _checked_text(self, text: object, what: str) -> str:
        if not isinstance(text, str):
            raise UnexplainedError(
                f"{self._where}: `{what}` gave a `{type(text).__name__}` as text; it must be a `str`", cause="no text"
            )
        # A lone surrogate cannot be tokenised or written as UTF-8.
        return text.encode("utf-8", "replace").decode("utf-8")
