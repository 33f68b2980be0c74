"""Episodes that an agent plays: it starts with a session, and the trajectory is what it called."""

import asyncio
from concurrent.futures import Executor
from copy import copy, deepcopy
from dataclasses import dataclass, replace

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.agents import Agent, AgentTask, agent_of
from agentrl.agent_loop.gateway.exactness import DropReason, ExactnessReport
from agentrl.agent_loop.gateway.rows import ToolTemplates
from agentrl.agent_loop.gateway.server import GatewayServer
from agentrl.agent_loop.gateway.session import Session, SessionSettings
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.run import RolloutSection, ValidationSection
from agentrl.engine.base import Engine
from agentrl.errors import AgentRLError, DataError
from agentrl.rewards.score import read_score
from agentrl.types import Termination, Trajectory

_EXIT_GRACE_S = 30.0
"""Time for an agent to end after its session took the last call."""
_ANSWER_GRACE_S = 12.0
"""Time for an engine to end a call at the deadline; see `turn_sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    session: Session
    key: str
    counts: ExactnessReport
    """Counts to report; those of held-out prompts stay empty."""


class AgentEpisodes:
    """Plays episodes with an agent; one instance per worker."""

    def __init__(
        self,
        section: AgentSection,
        rollout: RolloutSection,
        tokens: ChatTokens,
        threads: Executor,
        *,
        max_row_tokens: int,
        max_session_tokens: int | None = None,
        agent: Agent | None = None,
    ) -> None:
        """Take the parts.

        Args:
            section: the agent.
            rollout: limits, and the temperature.
            tokens: tokenizer and chat template, without tools.
            threads: threads that keep tokenising off the event loop.
            max_row_tokens: context of a call.
            max_session_tokens: limit of all rows of an episode; None: there is none.
            agent: used in place of the section's.

        Raises:
            ConfigError: there is no such agent.
        """
        self._agent = agent or agent_of(section)
        self._templates = ToolTemplates(tokens, threads)
        self._settings = SessionSettings(
            rollout=rollout,
            validation=ValidationSection(),
            agent=section,
            max_row_tokens=max_row_tokens,
            max_session_tokens=max_session_tokens,
        )
        self._server = GatewayServer()
        self._failed = ExactnessReport()
        self._is_held_out = False
        self._running: dict[str, _Running] = {}

    async def start(self) -> None:
        """Open the server."""
        await self._server.start()
        await self._agent.start()

    async def aclose(self) -> None:
        """End the agents, then the server."""
        await self._agent.aclose()
        await self._server.aclose()

    def take_failed(self) -> ExactnessReport:
        """Return the counts of failed episodes since the last call."""
        return self._failed.take()

    def sampling_by(self, validation: ValidationSection) -> "AgentEpisodes":
        """Return the same with another sampling."""
        other = copy(self)
        other._settings = replace(self._settings, validation=validation)
        return other

    def held_out(self, validation: ValidationSection) -> "AgentEpisodes":
        """Return the same for held-out prompts, which are in no report."""
        other = self.sampling_by(validation)
        other._is_held_out = True
        return other

    async def run(self, request: EpisodeRequest, engine: Engine) -> Trajectory:
        """Play one episode to its end; `settle` must follow.

        Raises:
            EngineDeadError: the engine died or did not answer.
            RolloutError: the infrastructure failed; the episode must not be trained on.
            DataError: the agent failed, or made no call.
        """
        report = ExactnessReport()
        session = Session(request, engine, settings=self._settings, templates=self._templates, report=report)
        key = self._server.open(session)
        counts = ExactnessReport() if self._is_held_out else report
        self._running[request.trajectory_id] = _Running(session=session, key=key, counts=counts)
        playing = asyncio.create_task(self._agent.play(self._task(request, session, key)))
        try:
            await self._wait(playing, session)
        finally:
            await self._end(playing, session)
        return session.take()

    def settle(self, trajectory_id: str, dropped: DropReason | None) -> ExactnessReport:
        """Close an episode that was scored, or failed; `dropped` is the reason if it is not trained on.

        Returns:
            Its counts, to be sent with its trajectory; none if it failed, since `take_failed` returns those.
        """
        if (running := self._running.pop(trajectory_id, None)) is None:
            return ExactnessReport()
        self._server.close(running.key)
        running.session.settle(dropped)
        if dropped is DropReason.FAILED:
            self._failed += running.counts
            return ExactnessReport()
        return running.counts

    def _task(self, request: EpisodeRequest, session: Session, key: str) -> AgentTask:
        # Copies: an agent may append to its messages, and other samples have the same prompt.
        messages, extra = deepcopy(request.prompt.messages), deepcopy(request.prompt.extra)
        return AgentTask(
            prompt=str(messages[-1].get("content") or "") if messages else "",
            messages=messages,
            extra=extra,
            prompt_id=request.prompt.prompt_id,
            session_url=self._server.url(key),
            api_key=key,
            deadline_s=session.deadline.remaining_s(),
        )

    async def _wait(self, playing: asyncio.Task[object], session: Session) -> None:
        """Wait for the agent's end, and for its deadline; after its last call it has a short time."""
        sealed = asyncio.create_task(session.sealed.wait())
        try:
            await asyncio.wait(
                {playing, sealed}, timeout=session.deadline.remaining_s(), return_when=asyncio.FIRST_COMPLETED
            )
            if not playing.done() and session.failure is None and session.sealed.is_set():
                grace_s = min(_EXIT_GRACE_S, session.deadline.remaining_s())
                await asyncio.wait({playing}, timeout=grace_s)
        finally:
            sealed.cancel()
        if not playing.done() and not session.sealed.is_set():
            session.seal(Termination.TIMEOUT)
            await session.close(wait_s=_ANSWER_GRACE_S)

    async def _end(self, playing: asyncio.Task[object], session: Session) -> None:
        """Seal the session, kill an agent that still runs, and take its reward.

        Raises:
            AgentRLError: the agent failed by itself.
        """
        await session.close()
        is_late = not playing.done()
        playing.cancel()
        await asyncio.wait({playing})
        if is_late or playing.cancelled():
            return
        try:
            if (returned := playing.result()) is not None:
                where = f"return value of the agent of prompt `{session.request.prompt.prompt_id}`"
                session.post_reward(read_score(returned, where=where))
        except AgentRLError as error:
            # An agent may well raise at the refusal of a call; then the reason of the refusal counts.
            at_refusal = isinstance(error, DataError) and not session.is_complete
            if session.failure is None and not at_refusal:
                raise
