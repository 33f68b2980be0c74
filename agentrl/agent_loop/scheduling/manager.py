"""The driver's side of the rollouts: assigns trajectories to engines and workers, and completes groups.

A trajectory starts on an engine where its reservation of KV memory fits (`admission`) and keeps that engine for all its turns;
the next one starts when it ends. If the engine dies, the trajectory restarts in a fresh episode on another engine. The first
trajectory of every prompt starts before the second of any: its duration shows which prompts take long, and those then go first.
"""

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl import clock
from agentrl.agent_loop.answer_log import AnswerLog
from agentrl.agent_loop.gateway.exactness import ExactnessReport
from agentrl.agent_loop.retries import longest_s
from agentrl.agent_loop.scheduling.admission import Admission
from agentrl.agent_loop.scheduling.engine_metrics import EngineWork
from agentrl.agent_loop.scheduling.failure_budget import FailureBudget
from agentrl.agent_loop.scheduling.group_wait import first_scored
from agentrl.agent_loop.scheduling.worker_pool import LoopWorkers
from agentrl.agent_loop.trajectory_records import AgentTrajectorySummary, TrajectoryRequest, WorkerReport, given_up
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.handles import WorkerHandle, all_of
from agentrl.config.schema.run import RolloutSection, ValidationSection
from agentrl.errors import AgentRLError, EngineDeadError, WorkerDiedError
from agentrl.judge.stats import JudgeStats
from agentrl.observability.logs import ONLY_IN_FILE
from agentrl.observability.step_time import end_together
from agentrl.rewards.math_answer import AnswerStats
from agentrl.types import Failure, FailureClass, Group, Prompt, TrajectoryRef, TrajectorySummary

logger = logging.getLogger(__name__)

_WORKER_TRIES = 2
"""Workers that try a trajectory, in turn; each retries in fresh episodes (`retries.MAX_RETRIES`)."""

_MAX_MOVES = 3
"""Engines that may die under one trajectory before it is given up; the trajectory itself may be the cause."""

_CLOSE_TIMEOUT_S = 5.0

_MARGIN_S = 30.0
"""Time that a worker may exceed its own limit by before the driver gives its trajectory up."""


class AgentLoopManager:
    """Rolls out groups of trajectories on several engines and workers."""

    def __init__(
        self,
        rollout: RolloutSection,
        engines: EngineFleet,
        workers: Sequence[WorkerHandle],
        *,
        max_prompt_tokens: int,
        kv_tokens: Sequence[int],
        kv_block_tokens: int = 1,
        reward_timeout_s: float,
        max_wait_s: float,
        has_agent: bool = False,
    ) -> None:
        """Take the started engines and workers.

        `kv_tokens` is the KV memory of each engine; 0: unbounded. `reward_timeout_s` is part of a trajectory's time limit;
        `max_wait_s` limits the restart of a worker. With `has_agent`, prompts may be of any length up to the limit.
        """
        self._engines = engines
        self._work = EngineWork(engines)
        self._max_prompt_tokens, self._has_agent = max_prompt_tokens, has_agent
        self._max_response_tokens = rollout.max_response_tokens
        self._workers = LoopWorkers(
            workers,
            clean_up=lambda worker: engines.abort_requests_of(worker.caller_id),
            max_wait_s=max_wait_s,
        )
        self._prompt_tokens: dict[str, int] = {}
        self._admission = Admission(
            kv_tokens,
            max_trajectories=rollout.max_concurrent_trajectories,
            max_response_tokens=rollout.max_response_tokens,
            policy=rollout.admission,
            num_copies=rollout.data_parallel_size,
            block_tokens=kv_block_tokens,
        )
        engines.report_to(self._admission)
        self._budget = FailureBudget(rollout)
        self._num_surplus = 0
        self._answers = AnswerLog()
        self._agents = ExactnessReport()
        self._reports: list[WorkerReport] = []
        self._timeout_s = longest_s(rollout, reward_timeout_s=reward_timeout_s) + _MARGIN_S

    def end_batch(self) -> None:
        """Check the reward after a batch; see `FailureBudget.end_batch`."""
        self._budget.end_batch()

    async def collect(
        self,
        prompts: Sequence[Prompt],
        *,
        step: int,
        samples_per_prompt: int,
        held_out: bool = False,
        on_finished: Callable[[TrajectorySummary], None],
    ) -> list[Group]:
        """Roll out `samples_per_prompt` trajectories of each prompt; with `held_out`, by the sampling of `validation`.

        Returns:
            One group per prompt, in the order of the prompts, trajectories in the order of their sample index. Trajectories
            lost to the infrastructure are included, without a reward.

        Raises:
            EngineError: every engine is dead for good.
            WorkerError: every agent-loop worker is dead for good.
            RolloutError, DataError: too many trajectories were lost (`FailureBudget`).
        """
        async with owned_tasks() as tasks:
            started = self.start(
                prompts,
                step=step,
                samples_per_prompt=samples_per_prompt,
                held_out=held_out,
                on_finished=lambda ref: on_finished(ref.summary),
                tasks=tasks,
            )
        return end_together([group.result() for group in started])

    def start(
        self,
        prompts: Sequence[Prompt],
        *,
        step: int,
        samples_per_prompt: int,
        extra_samples: int = 0,
        held_out: bool = False,
        sampling: ValidationSection | None = None,
        seed: int | None = None,
        prompt_tokens: Mapping[str, int] | None = None,
        finished: Mapping[str, Sequence[TrajectoryRef]] | None = None,
        on_finished: Callable[[TrajectoryRef], None],
        tasks: asyncio.TaskGroup,
    ) -> list[asyncio.Task[Group]]:
        """Start the trajectories that `collect` waits for; those of a lower `step` enter the engines first.

        With `extra_samples`, that many more trajectories per prompt are started, and a group is complete as soon as
        `samples_per_prompt` have a reward. Trajectories in `finished`, keyed by prompt id, join their group as they are.
        `sampling` and `seed` replace the run's, `prompt_tokens` (`measure`) the lengths of `check_prompts`.

        Returns:
            One task per prompt, which returns its group; cancelling it ends its trajectories.
        """
        finished, lengths = finished or {}, self._prompt_tokens if prompt_tokens is None else prompt_tokens
        existing = {(name, ref.summary.sample_index) for name, refs in finished.items() for ref in refs}
        samples: list[list[asyncio.Task[TrajectoryRef]]] = [[] for _ in prompts]
        for sample, (index, prompt) in itertools.product(range(samples_per_prompt + extra_samples), enumerate(prompts)):
            if (prompt.prompt_id, sample) not in existing:
                request = TrajectoryRequest(
                    step=step,
                    prompt=prompt,
                    sample_index=sample,
                    num_prompt_tokens=lengths.get(prompt.prompt_id, self._max_prompt_tokens),
                    held_out=held_out,
                    sampling=sampling,
                    seed=None if seed is None else f"{seed}/{prompt.prompt_id}-{sample}",
                )
                samples[index].append(tasks.create_task(self._make(request, on_finished)))
        names = [prompt.prompt_id for prompt in prompts]
        return [
            tasks.create_task(self._group(name, started, wanted=samples_per_prompt, finished=finished.get(name, ())))
            for name, started in zip(names, samples, strict=True)
        ]

    async def check_prompts(self, prompts: Sequence[Prompt]) -> dict[str, int]:
        """Measure the prompts of the next rollouts, and return those that are too long; see `measure`."""
        self._prompt_tokens, overlong = await self.measure(prompts)
        return overlong

    async def measure(self, prompts: Sequence[Prompt]) -> tuple[dict[str, int], dict[str, int]]:
        """Count the tokens of prompts; the workers share the tokenising.

        Returns:
            Tokens to reserve for each prompt, and the lengths of those above `data.max_prompt_tokens`, which cannot be
            rolled out; both keyed by prompt id.

        Raises:
            ConfigError: no engine has the KV memory for a trajectory of one of the other prompts.
            WorkerDiedError, WorkerError: see `LoopWorkers.ask`.
        """

        async def measured(share: list[Prompt]) -> dict[str, int]:
            return await self._workers.ask(lambda worker, _: worker.prompt_lengths(share))

        count = len(self._workers.living) or 1
        shares = await all_of(measured(list(prompts[n::count])) for n in range(count))
        lengths = {name: length for share in shares for name, length in share.items()}
        overlong = {name: length for name, length in lengths.items() if length > self._max_prompt_tokens}
        fitting = {
            name: self._max_prompt_tokens if self._has_agent else length
            for name, length in lengths.items()
            if name not in overlong
        }
        self._admission.refuse_too_long(max(fitting.values(), default=0))
        return fitting, overlong

    async def record(self, groups: Sequence[Group], prompts: Sequence[Prompt], *, step: int, validation: bool) -> None:
        """Let a worker write every trajectory of `groups` to disk; the data does not pass through the driver.

        Raises:
            WorkerDiedError, WorkerError: see `LoopWorkers.ask`.
        """
        refs = [trajectory.ref for group in groups for trajectory in group.trajectories]
        await self._workers.ask(
            lambda worker, is_retry: worker.record(step, list(prompts), validation, is_retry, *refs)
        )

    async def save_group(self, path: Path, trajectories: Sequence[TrajectoryRef]) -> str:
        """Let a worker write trajectories of one group into the file `path`; return its digest."""
        refs = [trajectory.ref for trajectory in trajectories]
        return await self._workers.ask(lambda worker, _: worker.save_group(path, *refs))

    async def load_group(self, path: Path, *, num_trajectories: int, digest: str, source: str) -> list[TrajectoryRef]:
        """Return the trajectories that `save_group` wrote; their tokens stay in the worker that reads them.

        Raises:
            DamagedCheckpointError: the file, fetched from the folder `source`, differs from what was written.
        """
        summaries, refs = await self._workers.ask(
            lambda worker, _: worker.call_keeping_rest(
                "load_group", num_trajectories, path, num_trajectories, digest, source
            )
        )
        now = clock.now()
        return [
            TrajectoryRef(summary=replace(summary, finished_at=now), ref=ref)
            for summary, ref in zip(summaries, refs, strict=True)
        ]

    async def metrics(self) -> dict[str, float]:
        """Return the metrics of workers, engines and admission since the last call."""
        await self.log_agents()
        reports, self._reports = self._reports, []
        num_surplus, self._num_surplus = self._num_surplus, 0
        return {
            "rollout/loop_lag_s_p99": max((report.lag.p99_s for report in reports), default=math.nan),
            "rollout/loop_lag_s_max": max((report.lag.max_s for report in reports), default=math.nan),
            "rollout/engine_deaths": float(self._engines.take_num_deaths()),
            "rollout/trajectories_surplus": float(num_surplus),
            "reward/checks_given_up": float(sum(report.answers.num_given_up for report in reports)),
            **({"rollout/judge_limit": limit} if math.isfinite(limit := self._admission.limit) else {}),
            **await self._work.metrics(),
            **sum((report.judge for report in reports), JudgeStats()).metrics(),
            **self._agents.take().metrics(),
        }

    async def log_agents(self) -> None:
        """Log the agents' token-exactness report since the last `metrics`; without agents nothing."""
        await self._take_reports()
        if self._agents.metrics():
            logger.info("agent: %s", self._agents)

    async def forget_reports(self) -> None:
        """Discard the workers' and engines' counts since the last `metrics`; keep agents', engine deaths and surplus."""
        await self._take_reports()
        self._reports.clear()
        await self._work.metrics()

    async def aclose(self) -> None:
        """Let the living workers close their tools and rewards; failures are logged."""
        await self._workers.aclose()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await all_of(worker.aclose() for worker in self._workers.living)
        except (TimeoutError, AgentRLError) as error:
            logger.warning("agent loop: workers did not close cleanly: %r", error)

    async def _group(
        self,
        prompt_id: str,
        tasks: Sequence[asyncio.Task[TrajectoryRef]],
        *,
        wanted: int,
        finished: Sequence[TrajectoryRef],
    ) -> Group:
        group = await first_scored(prompt_id, tasks, wanted=wanted, finished=finished)
        self._num_surplus += len(finished) + len(tasks) - len(group.trajectories)
        return group

    async def _make(self, request: TrajectoryRequest, on_finished: Callable[[TrajectoryRef], None]) -> TrajectoryRef:
        failures: list[Failure] = []
        entered_at = clock.now()
        for _ in range(_MAX_MOVES + 1):
            try:
                trajectory = await self._make_on_one_engine(request, failures, entered_at=entered_at)
                break
            except EngineDeadError as error:
                failures.append(Failure(failure_class=FailureClass.ENGINE, message=str(error)))
                logger.debug("trajectory %s: engine failed, restarting: %s", request.trajectory_id, error)
        else:
            reason = f"{_MAX_MOVES + 1} engines failed in turn, the last with: {failures[-1].message}"
            failures[-1] = replace(failures[-1], message=reason)
            trajectory = _timed(given_up(request, failures), entered_at, clock.now(), clock.now())
        self._budget.add(trajectory.summary)
        on_finished(trajectory)
        return trajectory

    async def _make_on_one_engine(
        self, request: TrajectoryRequest, failures: list[Failure], *, entered_at: float
    ) -> TrajectoryRef:
        """Wait for a place and run the trajectory there; the time since `entered_at` counts as admission wait.

        `failures` are those of earlier attempts; new ones are added, except the death of the engine.

        Raises:
            EngineDeadError: the engine failed; it is closed until it has recovered.
        """
        prompt_id, step, num_failures = request.prompt.prompt_id, request.step, len(failures)
        num_prompt_tokens = request.num_prompt_tokens
        place = await self._admission.enter(prompt_id, num_prompt_tokens=num_prompt_tokens, step=step)
        engine, started_at = self._engines[place.engine], clock.now()
        try:
            trajectory = await self._run(request, failures, engine.of_copy(place.copy) if place.copy else engine)
            # Of several rows, an engine holds one at a time, which is no longer than one trajectory.
            num_response_tokens = max(0, trajectory.summary.num_tokens - num_prompt_tokens)
            num_response_tokens = min(num_response_tokens, self._max_response_tokens)
            ended_at = clock.now()
            # After a failure here, most of the time may belong to failed attempts.
            if len(trajectory.summary.failures) == num_failures:
                duration_s = ended_at - started_at
                self._admission.learn(
                    place, prompt_id, step=step, num_response_tokens=num_response_tokens, duration_s=duration_s
                )
            self._admission.learn_judge_wait(place, trajectory.summary)
        except EngineDeadError as error:
            self._engines.suspect(place.engine, engine, error)  # before the place is released to another trajectory
            raise
        finally:
            self._admission.leave(place)
        return _timed(trajectory, entered_at, started_at, ended_at)

    async def _run(self, request: TrajectoryRequest, failures: list[Failure], engine: WorkerHandle) -> TrajectoryRef:
        """Try one worker after the other; a later one reuses no engine or tool state of an earlier one."""
        for number in range(_WORKER_TRIES):
            worker = await (self._workers.next() if number == 0 else self._workers.next_answering())
            attempt = replace(request, failures=tuple(failures))
            try:
                async with asyncio.timeout(self._timeout_s):
                    summary, ref = await worker.call_keeping_second("run", attempt, engine)
                if isinstance(summary, AgentTrajectorySummary):
                    self._agents += summary.agent
                return TrajectoryRef(summary=summary, ref=ref)
            except WorkerDiedError as error:
                reason = str(error)
                self._workers.note_death(worker)
            except TimeoutError:
                reason = f"{worker!r}: no answer in {self._timeout_s:g} s"
                logger.warning("trajectory %s: %s", request.trajectory_id, reason, extra=ONLY_IN_FILE)
            failures.append(Failure(failure_class=FailureClass.WORKER, message=reason))
        return given_up(request, failures)

    async def _take_reports(self) -> None:
        reports = [report for report in await all_of(map(self._report_of, self._workers.living)) if report]
        self._answers.note(sum((report.answers for report in reports), AnswerStats()))
        self._agents += sum((report.agent for report in reports), ExactnessReport())
        self._reports += reports

    async def _report_of(self, worker: WorkerHandle) -> WorkerReport | None:
        """Return a worker's measurements; None if it died, which loses them."""
        with contextlib.suppress(WorkerDiedError):
            if (report := await worker.report()) is not None:
                return report
        self._workers.note_death(worker)
        return None


@contextlib.asynccontextmanager
async def owned_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group; its first error cancels the block and all tasks, and is raised alone."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _timed(trajectory: TrajectoryRef, entered_at: float, started_at: float, ended_at: float) -> TrajectoryRef:
    """Add the parts of a trajectory's time that only the driver measures."""
    times = replace(
        trajectory.summary.times,
        admission_wait_s=started_at - entered_at,
        dispatch_s=ended_at - started_at - trajectory.summary.times.held_s,
    )
    return replace(trajectory, summary=replace(trajectory.summary, times=times, finished_at=ended_at))
