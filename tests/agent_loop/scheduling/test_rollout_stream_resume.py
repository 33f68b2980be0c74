"""Saving and restoring of rollouts ahead of the actor, in virtual time."""

import asyncio
import itertools
import shutil
from pathlib import Path

import pytest

from agentrl.data.prompts import PromptDataset
from agentrl.errors import DamagedCheckpointError
from agentrl.simulation.virtual_time import run_in_virtual_time
from tests.agent_loop.stream_player import (
    PROMPTS_PER_STEP,
    SAMPLES,
    Player,
    heavy_tail,
    names,
    read,
    streaming,
    train,
)


@pytest.mark.parametrize("killed_at", [1, 2, 5, 9])
def test_a_killed_run_resumes_with_what_was_in_hand(prompts: PromptDataset, tmp_path: Path, killed_at: int):
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
            await stream.restore(tmp_path / "rollouts", source="checkpoint")
            await asyncio.sleep(0)
            return await train(stream, player), set(player.started)

    before, began = run_in_virtual_time(first())
    prompts.seek(position := prompts.position)
    finished = {name for file in tmp_path.glob("rollouts/0*.atr") for name in read(file)["ids"]}
    after, began_again = run_in_virtual_time(second())
    assert finished, "some had finished, or this test shows nothing"
    assert not finished & began_again
    in_hand = set(names(prompts, position)) - set(itertools.chain(*before))
    assert (
        began_again & began == {name for name in began if any(f"-{prompt}-" in name for prompt in in_hand)} - finished
    ), "what was under way begins again, under the same ids"
    assert list(itertools.chain(*before, *after)) == names(prompts, 10 * PROMPTS_PER_STEP)


@pytest.mark.parametrize("killed_at", [5, 6, 8])
def test_ids_count_the_steps_of_the_run_in_a_stage_with_data_of_its_own_and_are_the_same_after_a_kill(
    prompts: PromptDataset, tmp_path: Path, killed_at: int
):
    """A stage from step 5 to 10, whose data set stands at an epoch of its own, far from 4 steps' prompts."""
    first_step, first_position = 5, 70

    async def played(*, since: int, until: int) -> list[str]:
        player = Player(lambda _: 1.0)
        player.policy_version = since
        async with streaming(
            player, prompts, first_step=first_step, first_position=first_position, max_staleness=1
        ) as stream:
            if since >= first_step:
                await stream.restore(tmp_path / "rollouts", source="checkpoint")
            await train(stream, player, num_steps=until)
            await stream.save(tmp_path / "rollouts")
        return player.started

    prompts.seek(first_position)
    whole = run_in_virtual_time(played(since=4, until=10))
    assert {int(name.split("-")[0]) for name in whole} == {5, 6, 7, 8, 9, 10}
    shutil.rmtree(tmp_path / "rollouts")
    prompts.seek(first_position)
    before = run_in_virtual_time(played(since=4, until=killed_at))
    after = run_in_virtual_time(played(since=killed_at, until=10))
    assert {*before, *after} == set(whole)


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
            await stream.restore(tmp_path / "first", source="checkpoint")
            await stream.save(tmp_path / "second")  # before anything more has ended
            taken = await stream.take(PROMPTS_PER_STEP, step=2)
        assert len(player.started) == PROMPTS_PER_STEP
        assert all(map(is_slow, player.started))
        for item in taken:
            refs = [ref.ref for ref in item.group.trajectories]
            assert refs == [f"2-{item.prompt.prompt_id}-{sample}" for sample in range(SAMPLES)]

    run_in_virtual_time(first())
    run_in_virtual_time(resumed())
    kept = [sorted(read(file)["ids"] for file in tmp_path.glob(f"{name}/0*.atr")) for name in ("first", "second")]
    assert [len(ids) for ids in kept[0]] == [SAMPLES - 1] * PROMPTS_PER_STEP
    assert kept[0] == kept[1]


@pytest.mark.parametrize("content", [b"", b'[{"number": 1, "is_who', b'{"number": 1}', b'[{"number": 1}]'])
def test_an_index_that_is_not_what_was_written_is_named_with_where_it_came_from(
    prompts: PromptDataset, tmp_path: Path, content: bytes
):
    async def main() -> None:
        async with streaming(Player(lambda _: 1.0), prompts, max_staleness=1) as stream:
            await stream.restore(tmp_path, source="s3://bucket/step_000001/rollouts")

    (tmp_path / "groups.json").write_bytes(content)
    with pytest.raises(
        DamagedCheckpointError, match=r"s3://bucket/step_000001/rollouts is damaged: `groups.json` cannot"
    ):
        run_in_virtual_time(main())


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
            await stream.restore(tmp_path / "rollouts", source="checkpoint")
            await asyncio.sleep(0.5)
            assert {name.split("-")[0] for name in player.started} == {"2"}
            await stream.take(PROMPTS_PER_STEP, step=2)

    run_in_virtual_time(main())
