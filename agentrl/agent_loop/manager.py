"""The driver's side of the rollouts: which trajectory runs where, and when a group is complete.

It is driven by events alone. A trajectory enters where its reservation of KV memory fits (`admission`), keeps that engine for
all its turns, and the next one starts the moment it ends. The first trajectory of every prompt starts before the second of any:
what they take tells which prompts take long, and those go first from then on.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl import clock
from agentrl.agent_loop.admission import Admission
from agentrl.agent_loop.failure_budget import FailureBudget
from agentrl.agent_loop.tries import longest_s
from agentrl.agent_loop.worker import TrajectoryRequest, WorkerReport
from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.config.schema import RolloutSection
from agentrl.errors import AgentRLError, ConfigError, WorkerDiedError
from agentrl.judge.stats import JudgeStats
from agentrl.observability.step_time import end_together
from agentrl.types import Failure, FailureClass, Group, Prompt, Termination, TrajectoryRef, TrajectorySummary

logger = logging.getLogger(__name__)

_WORKER_TRIES = 2
"""Workers that a trajectory is given to; a worker itself tries again in fresh episodes, `rollout.max_retries` times."""

_CLOSE_TIMEOUT_S = 5.0

_MARGIN_S = 30.0
"""What a worker may be late by before the driver gives its trajectory up."""


class AgentLoopManager:
    """Rolls out groups of trajectories on several engines and workers."""

    def __init__(
        self,
        rollout: RolloutSection,
        engines: Sequence[WorkerHandle],
        workers: Sequence[WorkerHandle],
        *,
        kv_tokens: Sequence[int],
        reward_timeout_s: float,
    ) -> None:
        """Take the started engines and workers.

        Args:
            rollout: how trajectories are made.
            engines: what samples.
            workers: what plays episodes.
            kv_tokens: KV memory of each engine in tokens, 0 where it has no bound of its own.
            reward_timeout_s: part of how long a trajectory may take.
        """
        self._engines = list(engines)
        self._max_prompt_tokens = rollout.max_prompt_tokens
        self._workers = list(workers)
        self._turns = itertools.count()
        self._prompt_tokens: dict[str, int] = {}
        self._admission = Admission(
            kv_tokens,
            max_trajectories=rollout.max_concurrent_trajectories,
            max_response_tokens=rollout.max_response_tokens,
            policy=rollout.admission,
        )
        self._budget = FailureBudget(rollout)
        self._timeout_s = longest_s(rollout, reward_timeout_s=reward_timeout_s) + _MARGIN_S

    async def collect(
        self,
        prompts: Sequence[Prompt],
        *,
        step: int,
        samples_per_prompt: int,
        on_finished: Callable[[TrajectorySummary], None],
    ) -> list[Group]:
        """Make `samples_per_prompt` trajectories of each prompt.

        Returns:
            One group per prompt, in the order of the prompts, members in the order of their sample index. Trajectories
            whose infrastructure failed are in it, without a reward.

        Raises:
            RolloutError, DataError: too many could not be made (`FailureBudget`).
        """
        requests = [
            TrajectoryRequest(step=step, prompt=prompt, sample_index=sample)
            for sample in range(samples_per_prompt)
            for prompt in prompts
        ]
        finished = end_together(await all_of(self._make(request, on_finished) for request in requests))
        return [
            Group(prompt_id=prompt.prompt_id, trajectories=finished[index :: len(prompts)])
            for index, prompt in enumerate(prompts)
        ]

    async def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """See that every prompt fits, before anything is rolled out; the workers share the tokenising.

        Raises:
            ConfigError: some are longer than `rollout.max_prompt_tokens`, the message names the first of them; or no engine
                has the memory for a trajectory.
        """
        count = len(self._workers)
        shares = [worker.prompt_lengths(list(prompts[index::count])) for index, worker in enumerate(self._workers)]
        self._prompt_tokens = {name: length for share in await all_of(shares) for name, length in share.items()}
        long = sorted(
            (name, length) for name, length in self._prompt_tokens.items() if length > self._max_prompt_tokens
        )
        if long:
            named = ", ".join(f"`{prompt_id}` ({num_tokens})" for prompt_id, num_tokens in long[:5])
            raise ConfigError(
                f"rollout.max_prompt_tokens: {len(long)} prompts are longer than {self._max_prompt_tokens} tokens, tools and "
                f"system text included: {named}{', ...' if len(long) > 5 else ''}. Raise it, or remove them from the data."
            )
        self._admission.refuse_too_long(max(self._prompt_tokens.values(), default=0))

    async def record(self, groups: Sequence[Group], prompts: Sequence[Prompt], *, step: int, validation: bool) -> None:
        """Have every trajectory of `groups` written down, by a worker; the bytes do not pass through here."""
        refs = [made.ref for group in groups for made in group.trajectories if made.ref is not None]
        await self._workers[0].record(step, list(prompts), validation, *refs)

    async def metrics(self) -> dict[str, float]:
        """Return `judge/...` over all workers and the event-loop lag of the worst, since the last call."""
        reports: list[WorkerReport] = await all_of(worker.report() for worker in self._workers)
        judge = sum((report.judge for report in reports), JudgeStats())
        return {
            "rollout/loop_lag_s_p99": max(report.lag.p99_s for report in reports),
            "rollout/loop_lag_s_max": max(report.lag.max_s for report in reports),
            "reward/checks_given_up": float(sum(report.num_checks_given_up for report in reports)),
            **judge.metrics(),
        }

    async def aclose(self) -> None:
        """Let the workers close tools and rewards, as far as they still can."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await all_of(worker.aclose() for worker in self._workers)
        except (TimeoutError, AgentRLError) as error:
            logger.warning("agent-loop workers did not close in order: %r", error)

    async def _make(
        self, request: TrajectoryRequest, on_finished: Callable[[TrajectorySummary], None]
    ) -> TrajectoryRef:
        prompt_id = request.prompt.prompt_id
        num_prompt_tokens = self._prompt_tokens.get(prompt_id, self._max_prompt_tokens)
        entered_at = clock.now()
        place = await self._admission.enter(prompt_id, num_prompt_tokens=num_prompt_tokens)
        started_at = clock.now()
        try:
            made = await self._run(request, place.engine)
            num_response_tokens = max(0, made.summary.num_tokens - num_prompt_tokens)
            duration_s = clock.now() - started_at
            self._admission.learn(place, prompt_id, num_response_tokens=num_response_tokens, duration_s=duration_s)
        finally:
            self._admission.leave(place)
        self._budget.add(made.summary)
        on_finished(made.summary)
        times = replace(
            made.summary.times,
            admission_wait_s=started_at - entered_at,
            dispatch_s=duration_s - made.summary.times.held_s,
        )
        return replace(made, summary=replace(made.summary, times=times, finished_at=started_at + duration_s))

    async def _run(self, request: TrajectoryRequest, engine: int) -> TrajectoryRef:
        reason = ""
        first = next(self._turns)
        for turn in range(first, first + _WORKER_TRIES):
            worker = self._workers[turn % len(self._workers)]
            try:
                async with asyncio.timeout(self._timeout_s):
                    summary, ref = await worker.call_keeping_second("run", request, self._engines[engine])
                return TrajectoryRef(summary=summary, ref=ref)
            except (TimeoutError, WorkerDiedError) as error:
                reason = str(error) or f"{worker!r}: no answer in {self._timeout_s:g} s"
                logger.warning("trajectory %s: %s", request.trajectory_id, reason)
        return TrajectoryRef(summary=_given_up(request, reason), ref=None)


def _given_up(request: TrajectoryRequest, reason: str) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=request.trajectory_id,
        prompt_id=request.prompt.prompt_id,
        sample_index=request.sample_index,
        reward=None,
        termination=Termination.INFRA_ERROR,
        num_tokens=0,
        num_response_tokens=0,
        num_turns=0,
        num_tool_calls=0,
        num_failed_tool_calls=0,
        num_answer_tags=0,
        num_retries=0,
        wall_time_s=0.0,
        policy_version=0,
        failures=(Failure(failure_class=FailureClass.WORKER, message=reason),),
    )
