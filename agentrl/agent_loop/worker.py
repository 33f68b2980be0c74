"""A process that runs many episodes at once: it builds its own tools and records infrastructure failures.

Input (a prompt and an engine) and output are plain data. Tools, reward and sessions are built here, at first use, on this
process's event loop; they never cross a process boundary.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from agentrl import clock
from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.episodes import AgentEpisodes
from agentrl.agent_loop.gateway.exactness import DropReason, ExactnessReport
from agentrl.agent_loop.retries import HANG_GRACE_S, FailedTryError, failing_as, pause_s, seed_suffix, should_retry
from agentrl.agent_loop.scoring import isolated_reward, score, with_final_rewards
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest, ToolAgentLoop
from agentrl.agent_loop.trajectory_builder import span_since
from agentrl.agent_loop.trajectory_records import (
    TrajectoryRequest,
    WorkerReport,
    failed_trajectory,
    with_agent_counts,
)
from agentrl.config.schema.agent_loop import AgentLoopSection
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection, ValidationSection
from agentrl.engine.base import Engine
from agentrl.environments.environment_thread import EnvironmentThread
from agentrl.environments.loader import build_environment
from agentrl.errors import ConfigError, RolloutError, ToolChangedError, ToolError
from agentrl.judge.connection import NO_CONTEXT, ToolContext
from agentrl.judge.stats import JudgeStats, judge_waits
from agentrl.observability.logs import repeating
from agentrl.observability.loop_lag import LoopLag, collect_rarely
from agentrl.rewards.base import Reward
from agentrl.rewards.loader import build_reward
from agentrl.rewards.math_answer import AnswerStats
from agentrl.rewards.score import Score
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.trajectories.store import TrajectoryStore, read_saved_group, write_saved_group
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Failure, FailureClass, Prompt, Termination, Trajectory, TrajectorySummary

logger = logging.getLogger(__name__)

_TOKENIZER_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of a worker, as plain data."""

    model: ModelSection
    rollout: RolloutSection
    reward: RewardSection
    tools: tuple[ToolConfig, ...]
    run_seed: int
    run_dir: str
    context: ToolContext = NO_CONTEXT
    """The judges and the extra workers, for tools and reward."""
    validation: ValidationSection = field(default_factory=ValidationSection)
    """Sampling of held-out prompts."""
    agent_loop: AgentLoopSection = field(default_factory=AgentLoopSection)
    """The environment, or the agent that plays the episodes."""
    max_row_tokens: int = 0
    """Context of an agent's call: longest prompt and response together."""
    max_session_tokens: int | None = None
    """See `RunConfig.max_session_tokens`; None: no limit."""
    tokenizer_class: str | None = None
    """Tokenizer class found by an engine (`agentrl.models.tokenizer`); with it, workers need not load torch."""


@runtime_checkable
class _JudgeCaller(Protocol):
    """A tool or reward that calls the code judge."""

    def take_judge_stats(self) -> JudgeStats: ...


@runtime_checkable
class _AnswerReader(Protocol):
    """A reward that reads a final answer and counts the results."""

    def take_answer_stats(self) -> AnswerStats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Objects that a worker builds at first use."""

    tokens: ChatTokens
    loop: ToolAgentLoop
    held_out_loop: ToolAgentLoop
    """Loop with the sampling of validation."""
    agent: AgentEpisodes | None
    """Plays the episodes in place of the loops."""
    tools: ToolExecutor
    reward: Reward
    scorer: Reward
    """The reward, in a thread of its own if it is user code."""
    environment: EnvironmentThread | None
    lag: LoopLag


class AgentLoopWorker:
    """Runs episodes; one instance per process."""

    def __init__(self, config: WorkerConfig, role: str) -> None:
        """Keep plain data only; `start` builds the rest."""
        self._config = config
        self._role = role
        self._parts: _Parts | None = None
        self._building = asyncio.Lock()
        self._running: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Build tools and reward now, so that a broken one stops the run before the first rollout.

        Raises:
            ConfigError: the tokenizer or the reward cannot be used.
            ToolError: a tool cannot be built or started.
        """
        await self._built()

    async def prompt_lengths(self, prompts: Sequence[Prompt]) -> dict[str, int]:
        """Return the number of tokens of each prompt, keyed by prompt id; tools and system text are included.

        Raises:
            ConfigError: the chat template cannot render one.
        """
        tokens = (await self._built()).tokens
        return await asyncio.to_thread(tokens.prompt_lengths, prompts)

    async def run(self, request: TrajectoryRequest, engine: Engine) -> tuple[TrajectorySummary, Trajectory]:
        """Roll out one trajectory, with retries in fresh episodes; after the last try, return a record of the failures.

        Raises:
            EngineDeadError: the trajectory must be restarted on another engine.
        """
        failures: list[Failure] = []
        started = clock.now()
        with self._registered():
            while (played := await self._try(request, engine, failures)) is None:
                if not should_retry(failures):
                    played = failed_trajectory(request, failures), ExactnessReport()
                    break
                await asyncio.sleep(pause_s(len(failures)))
        trajectory, counts = played
        trajectory = replace(
            trajectory,
            times=replace(trajectory.times, retry_s=clock.now() - started - trajectory.times.held_s),
            span=span_since(started),
        )
        return with_agent_counts(summarise_trajectory(trajectory), counts), trajectory

    async def record(
        self, step: int, prompts: Sequence[Prompt], validation: bool, is_retry: bool, *trajectories: Trajectory
    ) -> None:
        """Write finished trajectories of any worker into the run directory; they never pass through the driver.

        `is_retry` means that another worker died during this call: trajectories that it has written are skipped.
        """
        store = TrajectoryStore(Path(self._config.run_dir))
        await asyncio.to_thread(
            store.append, step, trajectories, prompts=prompts, validation=validation, leave_out_recorded=is_retry
        )

    async def save_group(self, path: Path, *trajectories: Trajectory) -> str:
        """Write trajectories into the file `path`, and replace what another worker may have written there.

        Returns:
            A digest of the file.
        """
        return await asyncio.to_thread(write_saved_group, path, trajectories)

    async def load_group(
        self, path: Path, num_trajectories: int, digest: str, source: str
    ) -> tuple[list[TrajectorySummary], *tuple[Trajectory, ...]]:
        """Return the trajectories that `save_group` wrote, after their summaries; see `read_saved_group`."""
        trajectories = await asyncio.to_thread(read_saved_group, path, num_trajectories, digest=digest, source=source)
        return list(map(summarise_trajectory, trajectories)), *trajectories

    async def ping(self) -> None:
        """Answer, to show that the event loop runs."""

    async def report(self) -> WorkerReport | None:
        """Return this process's measurements; None if it was restarted and has built nothing since."""
        if (parts := self._parts) is None:
            return None
        sources = (part for part in (*parts.tools.tools, parts.reward) if isinstance(part, _JudgeCaller))
        judge = sum((source.take_judge_stats() for source in sources), JudgeStats())
        answers = parts.reward.take_answer_stats() if isinstance(parts.reward, _AnswerReader) else AnswerStats()
        agent = parts.agent.take_failed() if parts.agent else ExactnessReport()
        return WorkerReport(lag=parts.lag.take(), judge=judge, answers=answers, agent=agent)

    async def aclose(self) -> None:
        """Cancel running episodes, then close tools and reward."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.lag.stop()
            if parts.agent is not None:
                await parts.agent.aclose()
            await parts.tools.aclose()
            await parts.scorer.aclose()
            if parts.environment is not None:
                await parts.environment.aclose()

    async def _built(self) -> _Parts:
        async with self._building:
            if self._parts is None:
                self._parts = await self._build()
            return self._parts

    async def _built_after_restart(self) -> _Parts:
        """Return the parts; a worker that was restarted during the run builds them now.

        Raises:
            RolloutError: building them failed, although it worked at the start, so a service must be unavailable.
            ToolChangedError: no retry brings the old tools back.
        """
        try:
            return await self._built()
        except ToolChangedError:
            raise
        except (ConfigError, ToolError) as error:
            raise RolloutError(f"{self._role}: cannot build its tools after a restart: {error}") from error

    async def _build(self) -> _Parts:
        async with contextlib.AsyncExitStack() as started:
            parts = await self._start_parts(started)
            started.pop_all()
        collect_rarely()
        return parts

    async def _start_parts(self, started: contextlib.AsyncExitStack) -> _Parts:
        """Build and start the parts; `started` closes them if a later one cannot start."""
        config = self._config
        threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        started.callback(threads.shutdown, wait=False)
        tools = ToolExecutor(build_tools(config.tools, config.context), timeout_s=config.rollout.tool_timeout_s)
        reward = build_reward(config.reward, config.context)
        scorer = isolated_reward(reward)
        environment = build_environment(config.agent_loop, timeout_s=tools.timeout_s, context=config.context)
        for part in (tools, scorer, environment):
            if part is not None:
                await part.start()  # one that cannot start closes itself
                started.push_async_callback(part.aclose)
        schemas = [schema.as_template_dict() for schema in tools.schemas]
        tokens = await asyncio.to_thread(ChatTokens.of_model, config.model, schemas, config.tokenizer_class)
        if environment is not None:
            tokens.require_user_turns()
        if tokens.rewrites_history or (environment is not None and tokens.turn_ends.rewrites_answers):
            logger.warning(
                "chat template of %s: renders earlier assistant turns differently from how they were sampled; "
                "trajectories keep the sampled tokens",
                config.model.path,
                extra=repeating("the chat template rewrites history"),
            )
        build_loop = functools.partial(
            ToolAgentLoop, config.rollout, tokens, tools, tokenizer_threads=threads, environment=environment
        )
        agent = None
        if config.agent_loop.agent.is_set:
            agent = AgentEpisodes(
                config.agent_loop.agent,
                config.rollout,
                tokens,
                threads,
                max_row_tokens=config.max_row_tokens,
                max_session_tokens=config.max_session_tokens,
            )
            await agent.start()
        return _Parts(
            tokens=tokens,
            loop=build_loop(),
            held_out_loop=build_loop(validation=config.validation),
            agent=agent,
            tools=tools,
            reward=reward,
            scorer=scorer,
            environment=environment,
            lag=LoopLag(self._role),
        )

    @contextlib.contextmanager
    def _registered(self) -> Iterator[None]:
        """Register the running task, so that `aclose` can cancel it."""
        task = asyncio.current_task()
        assert task is not None, "inside a coroutine"
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def _try(
        self, request: TrajectoryRequest, engine: Engine, failures: list[Failure]
    ) -> tuple[Trajectory, ExactnessReport] | None:
        """Run one episode; if it fails, add to `failures` and return None."""
        started = clock.now()
        try:
            with failing_as(FailureClass.WORKER, FailureClass.TOOL_DATA):
                parts = await self._built_after_restart()
            trajectory, counts = await self._play_settled(parts, request, engine, failures)
        except FailedTryError as failed:
            failures.append(replace(failed.failure, attempt=span_since(started)))
            logger.debug("trajectory %s, try %d: %r", request.trajectory_id, len(failures), failed.failure)
            return None
        return replace(trajectory, failures=(*request.failures, *failures)), counts

    async def _play_settled(
        self, parts: _Parts, request: TrajectoryRequest, engine: Engine, failures: Sequence[Failure]
    ) -> tuple[Trajectory, ExactnessReport]:
        """Run one episode and score it; return the counts of its agent, too."""
        episode, counts = self._episode(request, failures), ExactnessReport()
        dropped: DropReason | None = DropReason.FAILED
        try:
            trajectory = await self._play(parts, request, episode, engine)
            dropped = DropReason.MASKED if trajectory.is_masked else None
        finally:
            if parts.agent is not None:
                counts = parts.agent.settle(episode.trajectory_id, dropped)
        return replace(trajectory, num_retries=request.attempt + len(failures)), counts

    def _episode(self, request: TrajectoryRequest, failures: Sequence[Failure]) -> EpisodeRequest:
        retry = len(failures)
        # A fresh episode has its own id, so that a tool does not use the state of the failed one.
        restart_suffix = f"-again{request.attempt}" if request.attempt else ""
        episode_id = f"{request.trajectory_id}{restart_suffix}" + (f"-retry{retry}" if retry else "")
        seed = request.seed or f"{self._config.run_seed}/{request.trajectory_id}"
        return EpisodeRequest(
            trajectory_id=episode_id,
            prompt=request.prompt,
            sample_index=request.sample_index,
            seed=f"{seed}{restart_suffix}{seed_suffix(failures)}",
        )

    def _loop(self, parts: _Parts, request: TrajectoryRequest) -> ToolAgentLoop | AgentEpisodes:
        if parts.agent is not None:
            loop = parts.agent.held_out(self._config.validation) if request.held_out else parts.agent
        else:
            loop = parts.held_out_loop if request.held_out else parts.loop
        return loop if request.sampling is None else loop.sampling_by(request.sampling)

    async def _play(
        self, parts: _Parts, request: TrajectoryRequest, episode: EpisodeRequest, engine: Engine
    ) -> Trajectory:
        episode_id = episode.trajectory_id
        tool_episode = Episode(episode_id=episode_id, prompt_id=request.prompt.prompt_id, extra=request.prompt.extra)
        timeout_s = self._config.rollout.trajectory_timeout_s
        started = clock.now()
        try:
            with failing_as(FailureClass.TOOL, FailureClass.TOOL_DATA):
                # Engines and tools have their own time limits; this one covers the rest, such as a tokenizer.
                async with asyncio.timeout(timeout_s + HANG_GRACE_S):
                    trajectory = await self._loop(parts, request).run(episode, engine)
                finals = await parts.tools.final_rewards(tool_episode)
        except TimeoutError as error:
            message = f"episode {episode_id}: still running {HANG_GRACE_S:g} s after its limit of {timeout_s:g} s"
            raise FailedTryError(Failure(failure_class=FailureClass.HANG, message=message)) from error
        finally:
            await parts.tools.end_episode(tool_episode)
        trajectory = replace(trajectory, turns=with_final_rewards(trajectory.turns, finals))
        section = self._config.reward
        is_finished = trajectory.termination is Termination.ANSWERED
        # Unfinished episodes get 0: leaving them out teaches a policy to ramble (arXiv:2508.20722).
        reward, scoring_began = Score(value=0.0), clock.now()
        with judge_waits() as waits_s:
            if is_finished or section.score_unfinished == "score":
                with failing_as(FailureClass.REWARD, FailureClass.REWARD_DATA):
                    reward = await score(parts.scorer, section, request.prompt, trajectory.turns)
        reward_s = clock.now() - started - trajectory.times.held_s
        queue_s = min(reward_s, max(waits_s, default=0.0))
        times = replace(trajectory.times, reward_queue_s=queue_s, reward_s=reward_s - queue_s)
        return replace(
            trajectory,
            trajectory_id=request.trajectory_id,
            reward=reward.value,
            reward_metrics={**trajectory.reward_metrics, **reward.metrics},
            is_masked=not is_finished and section.score_unfinished == "mask",
            times=times,
            scored=span_since(scoring_began, queue_s=queue_s),
        )
