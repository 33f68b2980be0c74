import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from agentrl.agent_loop.gateway.exactness import ExactnessReport
from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.trajectory_records import TrajectoryRequest, WorkerReport, with_agent_counts
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.schema.run import RolloutSection
from agentrl.engine.base import EngineStats
from agentrl.errors import ConfigError, EngineDeadError, EngineError, RolloutError, WorkerDiedError
from agentrl.judge.stats import JudgeStats
from agentrl.observability.loop_lag import Lag
from agentrl.observability.reports.failure import count_failures
from agentrl.rewards.math_answer import AnswerStats
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Failure, FailureClass, Group, Prompt, Termination, TrajectorySummary
from tests.fakes import idle_stats
from tests.summaries import short_summary

ENGINE_DOWN = Failure(failure_class=FailureClass.ENGINE, message="the engine is down")
PROMPTS = [Prompt(prompt_id=f"p{n}", messages=[]) for n in range(6)]


def summary_of(request: TrajectoryRequest, termination: Termination = Termination.ANSWERED) -> TrajectorySummary:
    return short_summary(
        request.prompt.prompt_id,
        request.sample_index,
        reward=None if termination is Termination.INFRA_ERROR else 1.0,
        trajectory_id=request.trajectory_id,
        termination=termination,
        failures=(*request.failures, *([ENGINE_DOWN] if termination is Termination.INFRA_ERROR else [])),
    )


class FakeWorker:
    """The manager's view of a worker: what `WorkerHandle` offers, without a process behind it."""

    def __init__(self, play: Callable[[TrajectoryRequest], Any] | None = None, *, delay_s: float = 0.0) -> None:
        self.play = play or summary_of
        self.delay_s = delay_s
        self.running: Counter[str] = Counter()
        self.most_running: Counter[str] = Counter()
        self.begun: list[tuple[TrajectoryRequest, Any]] = []
        self.recorded: list[tuple[Any, ...]] = []
        self.caller_id = f"worker {id(self)}"
        self.dies_while_recording = 0
        self.agent = ExactnessReport()

    def __str__(self) -> str:
        return "agent_loop 0"

    async def start(self) -> None:
        """Be back at once."""

    async def call_keeping_second(self, method: str, request: TrajectoryRequest, engine: Any) -> tuple[Any, str]:
        assert method == "run"
        self.begun.append((request, engine))
        self.running[engine.name] += 1
        self.most_running[engine.name] = max(self.most_running[engine.name], self.running[engine.name])
        try:
            await asyncio.sleep(self.delay_s)
            if engine.is_dead:
                raise EngineDeadError(f"{engine.name}: its process died")
            outcome = self.play(request)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome, f"ref of {request.trajectory_id}"
        finally:
            self.running[engine.name] -= 1

    async def record(self, *arguments: Any) -> None:
        self.recorded.append(arguments)
        if len(self.recorded) <= self.dies_while_recording:
            raise WorkerDiedError("agent_loop 0: its process died")

    async def ping(self) -> None: ...

    async def report(self) -> WorkerReport:
        return WorkerReport(
            lag=Lag(p99_s=0.05, max_s=0.1),
            judge=JudgeStats(num_submissions=3),
            answers=AnswerStats(num_scored=4, num_missing=3, num_given_up=1),
            agent=self.agent.take(),
        )

    async def prompt_lengths(self, prompts: list[Prompt]) -> dict[str, int]:
        return {prompt.prompt_id: 2999 if prompt.prompt_id in ("p1", "p4") else 10 for prompt in prompts}


@dataclass(eq=False)
class FakeEngine:
    """An engine process that does not answer once it `is_dead`; another one of the same name takes its place."""

    name: str
    is_dead: bool = False
    cleared: list[str] = field(default_factory=list)

    async def start(self) -> None: ...

    def of_copy(self, number: int) -> "FakeEngine":
        return FakeEngine(f"{self.name}/{number}")

    async def abort_requests_of(self, caller: str) -> None:
        self.cleared.append(caller)

    async def stats(self) -> EngineStats:
        if self.is_dead:
            raise WorkerDiedError(f"{self.name}: its process died")
        return idle_stats()

    def kill(self) -> None:
        self.is_dead = True


def make_manager(
    workers: list[FakeWorker], *, engines: int = 1, kv_tokens: int = 0, max_prompt_tokens: int = 2048, **rollout: Any
) -> AgentLoopManager:
    handles: list[Any] = list(workers)
    fleet = EngineFleet(lambda index: cast(Any, FakeEngine(f"engine{index}")), num_engines=engines)
    return AgentLoopManager(
        RolloutSection(**rollout),
        fleet,
        handles,
        max_prompt_tokens=max_prompt_tokens,
        kv_tokens=[kv_tokens] * engines,
        reward_timeout_s=1,
        max_wait_s=1,
    )


async def collect(manager: AgentLoopManager, samples: int = 3):
    seen: list[TrajectorySummary] = []
    groups = await manager.collect(PROMPTS, step=7, samples_per_prompt=samples, on_finished=seen.append)
    return groups, seen


def test_groups_come_in_the_order_of_the_prompts_whoever_finishes_first():
    slow_first = FakeWorker()
    original = slow_first.call_keeping_second

    async def uneven(method: str, request: TrajectoryRequest, engine: Any):
        await asyncio.sleep(0.01 * (6 - int(request.prompt.prompt_id[1:])))
        return await original(method, request, engine)

    slow_first.call_keeping_second = uneven  # type: ignore[method-assign]

    async def main() -> tuple[list[Group], list[TrajectorySummary]]:
        return await collect(make_manager([slow_first]))

    groups, seen = run_in_virtual_time(main())
    assert [group.prompt_id for group in groups] == [prompt.prompt_id for prompt in PROMPTS]
    for group in groups:
        assert [ref.summary.sample_index for ref in group.trajectories] == [0, 1, 2]
        assert [ref.ref for ref in group.trajectories] == [f"ref of 7-{group.prompt_id}-{n}" for n in range(3)]
    assert seen[0].prompt_id == "p5"


async def test_no_engine_ever_holds_more_trajectories_than_it_has_places_for():
    worker = FakeWorker(delay_s=0.01)
    await collect(make_manager([worker], engines=2, max_concurrent_trajectories=2))
    assert worker.most_running == {"engine0": 2, "engine1": 2}


async def test_a_trajectory_is_made_by_the_copy_in_whose_memory_it_has_its_place():
    worker = FakeWorker(delay_s=0.01)
    longest = {"max_prompt_tokens": 100, "max_response_tokens": 100}
    await collect(make_manager([worker], engines=2, kv_tokens=580, data_parallel_size=2, **longest))
    assert worker.most_running == {"engine0": 1, "engine0/1": 1, "engine1": 1, "engine1/1": 1}


def test_the_next_trajectory_starts_the_moment_a_place_is_free():
    async def main() -> float:
        await collect(make_manager([FakeWorker(delay_s=60)], max_concurrent_trajectories=6))
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(3 * 60)


async def test_no_engine_is_promised_more_memory_than_it_has():
    worker = FakeWorker(delay_s=0.01)
    manager = make_manager([worker], engines=2, kv_tokens=3500, max_response_tokens=1000)
    counted = [prompt for prompt in PROMPTS if prompt.prompt_id not in ("p1", "p4")]
    await manager.check_prompts(counted)
    await manager.collect(counted, step=1, samples_per_prompt=4, on_finished=lambda _: None)
    assert worker.most_running == {"engine0": 3, "engine1": 3}, "1,010 tokens each"


async def test_a_prompt_for_which_no_engine_has_the_memory_is_refused_before_anything_is_rolled_out():
    manager = make_manager([FakeWorker()], kv_tokens=1005, max_response_tokens=1000)
    with pytest.raises(ConfigError, match="takes up to 1010"):
        await manager.check_prompts(PROMPTS[:1])


async def test_the_first_of_every_prompt_starts_before_the_second_of_any():
    order: list[tuple[str, int]] = []

    def play(request: TrajectoryRequest):
        order.append((request.prompt.prompt_id, request.sample_index))
        return summary_of(request)

    await collect(make_manager([FakeWorker(play)], max_concurrent_trajectories=1))
    assert {name for name, _ in order[:6]} == {prompt.prompt_id for prompt in PROMPTS}


async def test_a_dead_worker_costs_no_trajectory_while_another_lives():
    dead = FakeWorker(lambda request: WorkerDiedError("agent_loop 0: its process died"))
    groups, _ = await collect(make_manager([dead, FakeWorker()]))
    summaries = [ref.summary for group in groups for ref in group.trajectories]
    assert all(summary.reward == 1.0 for summary in summaries)
    died = Failure(failure_class=FailureClass.WORKER, message="agent_loop 0: its process died")
    assert Counter(summary.failures for summary in summaries) == {(died,): len(dead.begun), (): 18 - len(dead.begun)}
    assert dead.begun


async def test_a_dead_worker_measures_no_prompts_and_hinders_no_other():
    class Gone(FakeWorker):
        async def ping(self) -> None:
            raise WorkerDiedError("agent_loop: its node is gone")

        async def start(self) -> None:
            await self.ping()

        async def prompt_lengths(self, prompts: list[Prompt]) -> dict[str, int]:
            raise WorkerDiedError("agent_loop: its node is gone")

    manager = make_manager([Gone(), FakeWorker()])
    for _ in range(2):
        assert await manager.check_prompts(PROMPTS) == {"p1": 2999, "p4": 2999}


async def test_workers_that_died_together_cost_no_trajectory_while_another_lives():
    class Gone(FakeWorker):
        async def ping(self) -> None:
            raise WorkerDiedError("agent_loop: its node is gone")

        async def start(self) -> None:
            await self.ping()

    gone = [Gone(lambda request: WorkerDiedError("agent_loop: its node is gone")) for _ in range(3)]
    groups, _ = await collect(make_manager([*gone, FakeWorker()]))
    assert all(ref.summary.reward == 1.0 for group in groups for ref in group.trajectories)


async def test_what_a_dead_worker_has_asked_for_is_ended_in_every_engine():
    dead = FakeWorker(lambda request: WorkerDiedError("agent_loop 0: its process died"))
    manager = make_manager([dead, FakeWorker(delay_s=0.01)], engines=2)
    await collect(manager)
    for engine in manager._engines:
        assert set(cast(Any, engine).cleared) == {dead.caller_id}


async def test_a_trajectory_that_nobody_can_make_is_recorded_without_a_reward():
    def play(request: TrajectoryRequest):
        return WorkerDiedError("died") if request.prompt.prompt_id == "p2" else summary_of(request)

    groups, seen = await collect(make_manager([FakeWorker(play)]))
    lost = groups[2].trajectories
    assert {ref.summary.termination for ref in lost} == {Termination.INFRA_ERROR}
    assert {(ref.summary.reward, ref.ref.reward) for ref in lost} == {(None, None)}
    lost_by = {failure for ref in lost for failure in ref.ref.failures}
    assert lost_by == {Failure(failure_class=FailureClass.WORKER, message="died")}
    assert [ref.ref.trajectory_id for ref in lost] == [f"7-p2-{n}" for n in range(3)]
    assert len(seen) == 18


async def test_what_a_dead_engine_was_making_is_begun_again_on_one_that_lives_in_an_episode_of_its_own():
    worker = FakeWorker(delay_s=0.01)
    manager = make_manager([worker], engines=2, max_concurrent_trajectories=3)
    dead: Any = manager._engines[0]
    collecting = asyncio.create_task(collect(manager))
    await asyncio.sleep(0.001)
    dead.is_dead = True
    groups, _ = await collecting
    assert all(ref.summary.reward == 1.0 for group in groups for ref in group.trajectories)
    lost = [request for request, engine in worker.begun if engine is dead]
    assert len(lost) == 3, "nothing was begun there afterwards"
    begun = Counter(request.trajectory_id for request, _ in worker.begun)
    assert {name for name, number in begun.items() if number == 2} == {request.trajectory_id for request in lost}
    assert len({(request.trajectory_id, request.attempt) for request, _ in worker.begun}) == len(worker.begun) == 21
    counted = count_failures(ref.summary for group in groups for ref in group.trajectories)
    assert {name: number for name, number in counted.items() if number} == {"failures_engine": 3}
    assert (await manager.metrics())["rollout/engine_deaths"] == 1


async def test_where_the_only_engine_died_everything_waits_for_the_new_one():
    worker = FakeWorker(delay_s=0.01)
    manager = make_manager([worker], max_concurrent_trajectories=4)
    dead: Any = manager._engines[0]
    dead.is_dead = True
    groups, _ = await collect(manager)
    await manager.forget_reports()
    assert (await manager.metrics())["rollout/engine_deaths"] == 1, "as after a validation"
    assert all(ref.summary.reward == 1.0 for group in groups for ref in group.trajectories)
    assert sum(engine is dead for _, engine in worker.begun) == 4


async def test_the_counts_of_agents_outlast_a_validation_that_overlaps_with_training():
    worker = FakeWorker()
    manager = make_manager([worker])
    worker.agent.num_calls, worker.agent.num_sampled, worker.agent.num_trained = 2, 30, 30
    await manager.forget_reports()
    worker.agent.num_calls, worker.agent.num_sampled, worker.agent.num_trained = 1, 10, 10
    metrics = await manager.metrics()
    assert (metrics["agent/calls"], metrics["agent/tokens_trained"]) == (3, 40)
    assert "agent/calls" not in await manager.metrics()


async def test_the_counts_of_an_agents_trajectory_outlast_its_worker():
    def play(request: TrajectoryRequest) -> TrajectorySummary:
        return with_agent_counts(summary_of(request), ExactnessReport(num_calls=2, num_sampled=10, num_trained=10))

    class Dying(FakeWorker):
        async def report(self) -> WorkerReport:
            raise WorkerDiedError("agent_loop 0: its process died")

    manager = make_manager([Dying(play)])
    await collect(manager)
    metrics = await manager.metrics()
    assert metrics["agent/tokens_sampled"] == metrics["agent/tokens_trained"] == 10 * metrics["agent/calls"] / 2 > 0


async def test_agents_are_logged_within_a_step_and_the_metrics_of_the_step_are_kept(caplog: pytest.LogCaptureFixture):
    worker = FakeWorker()
    manager = make_manager([worker])
    with caplog.at_level("INFO", logger="agentrl.agent_loop.scheduling.manager"):
        await manager.log_agents()
        assert not caplog.records, "no agent has called yet"
        worker.agent.num_calls, worker.agent.num_sampled, worker.agent.num_trained = 2, 30, 30
        await manager.log_agents()
        worker.agent.num_calls, worker.agent.num_sampled, worker.agent.num_trained = 1, 10, 10
        metrics = await manager.metrics()
    assert [line.partition("agent: ")[2][:7] for line in caplog.text.splitlines()] == ["2 calls", "3 calls"]
    assert (metrics["agent/calls"], metrics["agent/tokens_trained"]) == (3, 40)
    assert metrics["reward/checks_given_up"] == 3, "each of the three reports holds one"


def test_a_trajectory_that_kills_every_engine_is_given_up_alone():
    worker = FakeWorker()

    def play(request: TrajectoryRequest):
        if request.trajectory_id == "7-p3-1":
            worker.begun[-1][1].is_dead = True
            return EngineDeadError("engine: its process died")
        return summary_of(request)

    async def main():
        return await collect(make_manager([worker], max_concurrent_trajectories=1))

    worker.play = play
    groups, _ = run_in_virtual_time(main())
    failed = [ref.summary for group in groups for ref in group.trajectories if ref.summary.reward is None]
    assert [summary.trajectory_id for summary in failed] == ["7-p3-1"]
    assert [failure.failure_class for failure in failed[0].failures] == [FailureClass.ENGINE] * 4
    assert failed[0].failures[-1].message == "4 engines failed in turn, the last with: engine: its process died"


def test_a_step_whose_engines_all_stay_dead_ends_with_their_error():
    def fail(index: int) -> Any:
        raise EngineError("there is no memory")

    async def main():
        manager = make_manager([FakeWorker()], max_concurrent_trajectories=4)
        dead: Any = manager._engines[0]
        dead.is_dead = True
        manager._engines._launch = fail
        await collect(manager)

    with pytest.raises(EngineError, match=r"all 1 died.*there is no memory"):
        run_in_virtual_time(main())


async def test_a_worker_that_dies_while_it_records_is_replaced_by_one_that_leaves_out_what_is_there():
    workers = [FakeWorker(), FakeWorker()]
    workers[0].dies_while_recording = 1
    manager = make_manager(workers)
    groups, _ = await collect(manager)
    await manager.record(groups, PROMPTS, step=7, validation=False)
    refs = tuple(ref.ref for group in groups for ref in group.trajectories)
    assert workers[0].recorded == [(7, PROMPTS, False, False, *refs)]
    assert workers[1].recorded == [(7, PROMPTS, False, True, *refs)]


async def test_the_figures_of_a_worker_that_died_are_left_out():
    async def died() -> WorkerReport:
        raise WorkerDiedError("agent_loop 0: its process died")

    dead = FakeWorker()
    dead.report = died
    assert (await make_manager([dead, FakeWorker()]).metrics())["judge/submissions"] == 3


async def test_a_worker_that_ray_started_again_before_anybody_noticed_is_built_again():
    built = asyncio.Event()

    async def nothing_built() -> None:
        return None

    async def build() -> None:
        built.set()

    back = FakeWorker()
    back.report, back.start = nothing_built, build  # type: ignore[method-assign]
    manager = make_manager([back, FakeWorker()])
    assert (await manager.metrics())["judge/submissions"] == 3
    async with asyncio.timeout(10):
        await built.wait()


async def test_trajectories_that_the_infrastructure_keeps_losing_end_the_step_before_all_of_them_are_lost():
    seen: list[TrajectorySummary] = []
    worker = FakeWorker(lambda request: summary_of(request, Termination.INFRA_ERROR))
    manager = make_manager([worker], max_concurrent_trajectories=1)
    with pytest.raises(RolloutError, match=r"lost to the infrastructure.*`engine`: .*the engine is down"):
        await manager.collect(PROMPTS, step=7, samples_per_prompt=3, on_finished=seen.append)
    assert len(seen) < 18


async def test_a_run_without_a_judge_ends_in_few_steps_of_one_prompt_each():
    worker = FakeWorker(lambda request: summary_of(request, Termination.INFRA_ERROR))
    manager = make_manager([worker], prompts_per_step=1, samples_per_prompt=2)
    for step, prompt in enumerate(PROMPTS[:4]):
        await manager.collect([prompt], step=step, samples_per_prompt=2, on_finished=lambda _: None)
    with pytest.raises(RolloutError, match="8 of the last 8 trajectories were lost to the infrastructure"):
        await manager.collect(PROMPTS[4:5], step=4, samples_per_prompt=2, on_finished=lambda _: None)


async def test_a_bug_in_a_worker_stops_the_step_with_that_error_alone():
    with pytest.raises(ConfigError, match="^gave nan$"):  # noqa: RUF043
        await collect(make_manager([FakeWorker(lambda request: ConfigError("gave nan"))]))


async def test_judge_figures_add_up_over_the_workers():
    metrics = await make_manager([FakeWorker(), FakeWorker()]).metrics()
    assert metrics["judge/submissions"] == 6
    assert metrics["reward/checks_given_up"] == 2
    assert (metrics["rollout/loop_lag_s_p99"], metrics["rollout/loop_lag_s_max"]) == (0.05, 0.1)


async def test_the_first_scored_answers_are_logged_and_a_first_batch_without_any_answer_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO")
    worker = FakeWorker()
    batches = [
        AnswerStats(),
        AnswerStats(num_scored=4, num_missing=4, examples=("a", "b")),
        AnswerStats(num_scored=4, num_missing=4, examples=("c", "d")),
    ]

    async def report() -> WorkerReport:
        lag = Lag(p99_s=0.0, max_s=0.0)
        return WorkerReport(lag=lag, judge=JudgeStats(), answers=batches.pop(0))

    worker.report = report  # type: ignore[method-assign]
    manager = make_manager([worker])
    for _ in range(3):
        await manager.metrics()
    [first, second, warning, third] = [record.getMessage() for record in caplog.records]
    assert (first, second, third) == ("reward: a", "reward: b", "reward: c")
    assert warning.startswith("reward: no answer found in the first 4 finished trajectories")
    assert "`reward.answer_format`" in warning


async def test_prompts_that_are_too_long_are_found_before_anything_is_rolled_out():
    manager = make_manager([FakeWorker(), FakeWorker()], kv_tokens=3000, max_response_tokens=952)
    assert await manager.check_prompts(PROMPTS) == {"p1": 2999, "p4": 2999}


async def test_the_loop_lag_of_a_step_is_that_of_the_worst_worker():
    late, fine = FakeWorker(), FakeWorker()

    async def report() -> WorkerReport:
        return WorkerReport(lag=Lag(p99_s=0.1, max_s=1.5), judge=JudgeStats(), answers=AnswerStats())

    late.report = report  # type: ignore[method-assign]
    metrics = await make_manager([late, fine]).metrics()
    assert metrics["rollout/loop_lag_s_max"] == 1.5


def test_what_a_trajectory_took_that_failed_says_nothing_about_its_prompt():
    async def main() -> list[tuple[str, int]]:
        worker = FakeWorker(delay_s=0.1)

        def play(request: TrajectoryRequest) -> TrajectorySummary:
            worker.delay_s = 10.0  # all but the first take longer
            is_first = (request.prompt.prompt_id, request.sample_index) == ("p0", 0)
            return summary_of(request, Termination.INFRA_ERROR if is_first else Termination.ANSWERED)

        worker.play = play
        manager = make_manager([worker], max_concurrent_trajectories=1, max_infra_error_share=1.0)
        await manager.collect(PROMPTS[:2], step=1, samples_per_prompt=2, on_finished=lambda _: None)
        return [(request.prompt.prompt_id, request.sample_index) for request, _ in worker.begun]

    # Taken for a short prompt, `p0` would come last; nothing is known of it, so that it comes first.
    assert run_in_virtual_time(main()) == [("p0", 0), ("p1", 0), ("p0", 1), ("p1", 1)]
