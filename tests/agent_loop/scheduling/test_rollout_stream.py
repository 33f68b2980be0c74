"""Rollouts ahead of the actor, in virtual time: which batch a group lands in, and how old it is then."""

import asyncio
import itertools
import random

import pytest

from agentrl import clock
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError, EngineError, WorkerError
from agentrl.simulation.virtual_time import run_in_virtual_time
from tests.agent_loop.stream_player import (
    PROMPTS_PER_STEP,
    SAMPLES,
    Player,
    SilentProgress,
    heavy_tail,
    names,
    streaming,
    train,
)


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_follow_the_data_and_nothing_is_older_than_allowed(
    prompts: PromptDataset, max_staleness: int, seed: int
):
    async def main() -> list[list[str]]:
        player, metrics = Player(heavy_tail(seed)), []
        refills = lambda step: random.Random(seed + step).choice([0, 0, 1, 3])  # noqa: E731
        async with streaming(player, prompts, max_staleness=max_staleness, max_concurrent_trajectories=16) as stream:
            batches = await train(stream, player, refills=refills)
            metrics.append(stream.metrics())
        assert metrics[0]["rollout/groups_too_old"] == 0
        if max_staleness:
            assert metrics[0]["rollout/staleness_max"] == max_staleness, "all that is allowed is made use of"
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
        repeated = player.started[-PROMPTS_PER_STEP * SAMPLES :]
        assert {name for item in taken for name in [ref.ref for ref in item.group.trajectories]} == set(repeated)
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
