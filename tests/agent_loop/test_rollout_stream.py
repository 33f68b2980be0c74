"""Rollouts ahead of the actor, in virtual time: which batch a group lands in, how old it is then, what a checkpoint keeps.

The manager is the real one; trajectories only take time, which has a heavy tail.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl import clock
from agentrl.agent_loop.manager import AgentLoopManager
from agentrl.agent_loop.rollout_stream import RolloutStream, rollout_stream
from agentrl.agent_loop.worker import TrajectoryRequest
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.schema import RolloutSection
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError, EngineError, WorkerError
from agentrl.runners.virtual_time import run_in_virtual_time
from agentrl.types import Termination, TrajectorySummary

PROMPTS_PER_STEP, SAMPLES = 4, 3


class Player:
    """A worker, and the engine behind it: a trajectory carries the policy version at which it began."""

    def __init__(self, duration_s: Callable[[str], float]) -> None:
        self.duration_s = duration_s
        self.policy_version = 0
        self.started: list[str] = []
        self.num_running = 0

    async def call_keeping_second(self, method: str, request: TrajectoryRequest, engine: str) -> tuple[Any, Any]:
        assert method == "run"
        summary = summary_of(request.trajectory_id, request.prompt.prompt_id, self.policy_version)
        self.started.append(request.trajectory_id)
        self.num_running += 1
        try:
            await asyncio.sleep(self.duration_s(request.trajectory_id))
        finally:
            self.num_running -= 1
        return summary, request.trajectory_id

    async def save_group(self, path: Path, *trajectory_ids: str) -> None:
        write(path, {"ids": trajectory_ids, "version": self.policy_version})

    async def call_keeping_rest(self, method: str, num_kept: int, path: Path) -> tuple[Any, list[Any]]:
        assert method == "load_group"
        saved = read(path)
        assert len(saved["ids"]) == num_kept
        return [
            summary_of(name, name.split("-", 1)[1].rpartition("-")[0], saved["version"]) for name in saved["ids"]
        ], saved["ids"]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def summary_of(trajectory_id: str, prompt_id: str, policy_version: int) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=trajectory_id,
        prompt_id=prompt_id,
        sample_index=int(trajectory_id.rpartition("-")[2]),
        reward=1.0,
        termination=Termination.ANSWERED,
        num_tokens=10,
        num_response_tokens=5,
        num_turns=1,
        num_tool_calls=0,
        num_failed_tool_calls=0,
        num_answer_tags=1,
        num_retries=0,
        wall_time_s=0.1,
        policy_version=policy_version,
    )


class SilentProgress:
    """Counts what is still missing of the rollout that is waited for."""

    def __init__(self) -> None:
        self.missing: list[int] = []

    def start_rollout(self, description: str, *, num_trajectories: int) -> None:
        self.missing.append(num_trajectories)

    def finish_trajectory(self, *, num_tokens: int) -> None:
        self.missing[-1] -= 1


def heavy_tail(seed: int) -> Callable[[str], float]:
    return lambda trajectory_id: random.Random(f"{seed}/{trajectory_id}").lognormvariate(0, 1.5)


@pytest.fixture
def prompts(tmp_path: Path) -> PromptDataset:
    """Seven prompts, so that batches run over the end of an epoch."""
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Compute {n} + 1.", "answer": n + 1}) + "\n" for n in range(7)))
    return PromptDataset([file], prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=0)


@asynccontextmanager
async def streaming(
    player: Player,
    prompts: PromptDataset,
    *,
    num_steps: int = 10,
    progress: SilentProgress | None = None,
    **rollout: Any,
) -> AsyncIterator[RolloutStream]:
    section = RolloutSection(prompts_per_step=PROMPTS_PER_STEP, samples_per_prompt=SAMPLES, **rollout)
    parts: Any = [player]
    engine: Any = "engine"
    manager = AgentLoopManager(
        section, EngineFleet(lambda _: engine, num_engines=1), parts, kv_tokens=[0], reward_timeout_s=1, max_wait_s=1
    )
    shown: Any = progress or SilentProgress()
    async with rollout_stream(manager, prompts, section, num_steps=num_steps, progress=shown) as stream:
        yield stream


async def train(
    stream: RolloutStream,
    player: Player,
    *,
    num_steps: int = 10,
    update_s: float = 1.0,
    refills: Callable[[int], int] = lambda step: 0,
) -> list[list[str]]:
    """Learn from every batch; gives the prompts of each. `refills` says how many groups of a step are replaced."""
    batches = []
    for step in range(player.policy_version + 1, num_steps + 1):
        taken = await stream.take(PROMPTS_PER_STEP, step=step)
        if count := refills(step):
            taken += await stream.take(count, step=step)
        batches.append([made.prompt.prompt_id for made in taken])
        await asyncio.sleep(update_s)
        player.policy_version = step
    return batches


def names(prompts: PromptDataset, count: int) -> list[str]:
    return [prompts.at(number).prompt_id for number in range(count)]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_follow_the_data_and_nothing_is_older_than_allowed(
    prompts: PromptDataset, max_staleness: int, seed: int
):
    async def main() -> list[list[str]]:
        player, found = Player(heavy_tail(seed)), []
        refills = lambda step: random.Random(seed + step).choice([0, 0, 1, 3])  # noqa: E731
        async with streaming(player, prompts, max_staleness=max_staleness, max_concurrent_trajectories=16) as stream:
            batches = await train(stream, player, refills=refills)
            found.append(stream.metrics())
        assert found[0]["rollout/groups_too_old"] == 0
        if max_staleness:
            assert found[0]["rollout/staleness_max"] == max_staleness, "all that is allowed is made use of"
        return batches

    batches = run_in_virtual_time(main())
    consumed = list(itertools.chain(*batches))
    assert len(batches) == 10
    assert consumed == names(prompts, prompts.position), "each once, in the order of the data, none left over"


def test_what_is_in_a_batch_does_not_depend_on_who_is_fast(prompts: PromptDataset):
    def played(seed: int) -> tuple[list[list[str]], set[str]]:
        async def main() -> list[list[str]]:
            async with streaming(player, prompts, max_staleness=2) as stream:
                return await train(stream, player)

        player = Player(heavy_tail(seed))
        prompts.seek(0)
        return run_in_virtual_time(main()), set(player.started)

    assert played(1) == played(2)


def test_rollouts_go_on_during_updates_and_the_actor_waits_less(prompts: PromptDataset):
    def seconds(max_staleness: int) -> float:
        async def main() -> float:
            player = Player(heavy_tail(0))
            async with streaming(player, prompts, max_staleness=max_staleness) as stream:
                await train(stream, player, update_s=3.0)
            return clock.now()

        prompts.seek(0)
        return run_in_virtual_time(main())

    synchronous, asynchronous = seconds(0), seconds(2)
    assert synchronous > 1.8 * asynchronous, (synchronous, asynchronous)


def test_without_staleness_nothing_runs_during_an_update_and_ids_carry_the_step(prompts: PromptDataset):
    async def main() -> None:
        player = Player(heavy_tail(0))
        async with streaming(player, prompts) as stream:
            for step in (1, 2):
                await stream.take(PROMPTS_PER_STEP, step=step)
                await stream.take(1, step=step)
                assert player.num_running == 0
                assert prompts.position == step * (PROMPTS_PER_STEP + 1)
                player.policy_version = step
            assert stream.metrics() == {"rollout/groups_too_old": 0}
        expected = [f"{1 + n // 5}-{name}-{k}" for n, name in enumerate(names(prompts, 10)) for k in range(SAMPLES)]
        assert sorted(player.started) == sorted(expected)

    run_in_virtual_time(main())


def test_what_the_actor_needs_first_enters_the_engines_first(prompts: PromptDataset):
    async def main() -> None:
        player = Player(lambda _: 1.0)
        async with streaming(player, prompts, max_staleness=2, max_concurrent_trajectories=1) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            await asyncio.sleep(PROMPTS_PER_STEP * SAMPLES + 0.5)
        batch = PROMPTS_PER_STEP * SAMPLES
        assert [name.split("-")[0] for name in player.started] == ["1"] * batch + ["2"] * batch + ["3"]

    run_in_virtual_time(main())


def test_an_error_ends_the_run_while_the_actor_trains(prompts: PromptDataset):
    def duration_s(trajectory_id: str) -> float:
        if trajectory_id.startswith("2-"):
            raise WorkerError("a bug in my reward")
        return 1.0

    async def main() -> None:
        player = Player(duration_s)
        async with streaming(player, prompts, max_staleness=1, max_concurrent_trajectories=12) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            await asyncio.sleep(1000)

    async def measured() -> float:
        with pytest.raises(WorkerError, match=r"^a bug in my reward$"):
            await main()
        return clock.now()

    assert run_in_virtual_time(measured()) < 10


def test_an_error_of_the_actor_ends_the_rollouts_and_is_raised_as_it_is(prompts: PromptDataset):
    async def main() -> None:
        player = Player(lambda name: 1.0 if name.startswith("1-") else 1000.0)

        async def run() -> None:
            async with streaming(player, prompts, max_staleness=1) as stream:
                await stream.take(PROMPTS_PER_STEP, step=1)
                assert player.num_running == PROMPTS_PER_STEP * SAMPLES
                raise ConfigError("the actor")

        with pytest.raises(ConfigError, match=r"^the actor$"):
            await run()
        assert player.num_running == 0
        assert clock.now() < 10

    run_in_virtual_time(main())


def test_what_is_left_at_the_end_is_cancelled(prompts: PromptDataset):
    async def main() -> float:
        player = Player(lambda name: 1.0 if name.startswith("1-") else 1000.0)
        async with streaming(player, prompts, max_staleness=2) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            assert player.num_running == 2 * PROMPTS_PER_STEP * SAMPLES
        assert player.num_running == 0
        return clock.now()

    assert run_in_virtual_time(main()) < 10


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_what_an_engine_sampled_with_old_weights_is_rolled_out_again(prompts: PromptDataset, max_staleness: int):
    async def main() -> None:
        player, late = Player(lambda _: 1.0), max_staleness + 1
        async with streaming(player, prompts, max_staleness=max_staleness, num_steps=late + 1) as stream:
            for step in range(1, late + 1):
                await stream.take(PROMPTS_PER_STEP, step=step)  # and no new weights
            updating = asyncio.get_running_loop().call_later(0.5, setattr, player, "policy_version", late)
            taken = await stream.take(PROMPTS_PER_STEP, step=late + 1)
            updating.cancel()
            assert stream.metrics()["rollout/groups_too_old"] == PROMPTS_PER_STEP
        again = player.started[-PROMPTS_PER_STEP * SAMPLES :]
        assert {name for item in taken for name in [made.ref for made in item.group.trajectories]} == set(again)
        assert len(player.started) == (late + 2) * PROMPTS_PER_STEP * SAMPLES

    run_in_virtual_time(main())


def test_an_engine_that_never_gets_new_weights_ends_the_run(prompts: PromptDataset):
    async def main() -> None:
        async with streaming(Player(lambda _: 1.0), prompts) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            with pytest.raises(EngineError, match=r"sampled twice with weights older than `rollout.max_staleness` = 0"):
                await stream.take(PROMPTS_PER_STEP, step=2)

    run_in_virtual_time(main())


def test_the_progress_bar_counts_what_is_waited_for_alone(prompts: PromptDataset):
    async def main() -> None:
        player, progress = Player(heavy_tail(3)), SilentProgress()
        async with streaming(player, prompts, max_staleness=2, progress=progress) as stream:
            await train(stream, player, update_s=0.5)
        assert progress.missing == [0] * 10

    run_in_virtual_time(main())


@pytest.mark.parametrize("killed_at", [1, 2, 5, 9])
def test_a_killed_run_goes_on_with_what_was_in_hand(prompts: PromptDataset, tmp_path: Path, killed_at: int):
    """The checkpoint of step `killed_at`, and then a new process."""

    async def first() -> tuple[list[list[str]], set[str]]:
        player = Player(heavy_tail(5))
        async with streaming(player, prompts, max_staleness=2) as stream:
            batches = await train(stream, player, num_steps=killed_at, update_s=2.0)
            await stream.save(tmp_path / "rollouts")
            return batches, set(player.started)

    async def second() -> tuple[list[list[str]], set[str]]:
        player = Player(heavy_tail(5))
        player.policy_version = killed_at
        async with streaming(player, prompts, max_staleness=2) as stream:
            await stream.restore(tmp_path / "rollouts")
            await asyncio.sleep(0)
            return await train(stream, player), set(player.started)

    before, began = run_in_virtual_time(first())
    prompts.seek(position := prompts.position)
    finished = {name for file in tmp_path.glob("rollouts/0*.jsonl") for name in read(file)["ids"]}
    after, began_again = run_in_virtual_time(second())
    assert finished, "some had finished, or this test shows nothing"
    assert not finished & began_again
    in_hand = set(names(prompts, position)) - set(itertools.chain(*before))
    assert (
        began_again & began == {name for name in began if any(f"-{prompt}-" in name for prompt in in_hand)} - finished
    ), "what was under way begins again, under the same ids"
    assert list(itertools.chain(*before, *after)) == names(prompts, 10 * PROMPTS_PER_STEP)


def test_of_a_group_under_way_only_what_is_missing_is_made_again(prompts: PromptDataset, tmp_path: Path):
    def is_slow(name: str) -> bool:
        return name.startswith("2-") and name.endswith("-1")

    async def first() -> None:
        async with streaming(Player(lambda name: 50.0 if is_slow(name) else 1.0), prompts, max_staleness=1) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            await asyncio.sleep(10)
            await stream.save(tmp_path / "first")

    async def resumed() -> None:
        player = Player(lambda _: 1.0)
        player.policy_version = 1
        async with streaming(player, prompts, num_steps=2, max_staleness=1) as stream:
            await stream.restore(tmp_path / "first")
            await stream.save(tmp_path / "second")  # before anything more has ended
            taken = await stream.take(PROMPTS_PER_STEP, step=2)
        assert len(player.started) == PROMPTS_PER_STEP
        assert all(map(is_slow, player.started))
        for made in taken:
            refs = [one.ref for one in made.group.trajectories]
            assert refs == [f"2-{made.prompt.prompt_id}-{sample}" for sample in range(SAMPLES)]

    run_in_virtual_time(first())
    run_in_virtual_time(resumed())
    kept = [sorted(read(file)["ids"] for file in tmp_path.glob(f"{name}/0*.jsonl")) for name in ("first", "second")]
    assert [len(ids) for ids in kept[0]] == [SAMPLES - 1] * PROMPTS_PER_STEP
    assert kept[0] == kept[1]


def test_groups_under_way_start_again_before_new_ones(prompts: PromptDataset, tmp_path: Path):
    async def main() -> None:
        async with streaming(
            Player(lambda name: 1.0 if name.startswith("1-") else 50.0), prompts, max_staleness=1
        ) as stream:
            await stream.take(PROMPTS_PER_STEP, step=1)
            await stream.save(tmp_path / "rollouts")
        player = Player(lambda _: 1.0)
        player.policy_version = 1
        async with streaming(player, prompts, max_staleness=1) as stream:
            await stream.restore(tmp_path / "rollouts")
            await asyncio.sleep(0.5)
            assert {name.split("-")[0] for name in player.started} == {"2"}
            await stream.take(PROMPTS_PER_STEP, step=2)

    run_in_virtual_time(main())
