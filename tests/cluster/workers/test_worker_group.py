"""Groups of ranks: ways of calling them, and what becomes of an error on one of them."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.errors import (
    ConfigError,
    InsufficientResourcesError,
    ModelDiedError,
    PeerLostError,
    WorkerDiedError,
    WorkerError,
)
from tests.cluster.workers import ComputingRank, RankWorker

pytestmark = pytest.mark.ray


@pytest.fixture
def group(local_ray: Path) -> WorkerGroup:
    pool = ResourcePool(num_processes=3, num_cpus=0.1)
    return WorkerGroup("echo", spawn(RankWorker, pool, {}, "echo", max_concurrency=4))


async def test_a_call_to_all_has_the_same_arguments_on_every_rank(group: WorkerGroup):
    seen = await group.all("echo", 1, "a")
    assert [arguments for _, arguments in seen] == [(1, "a")] * 3
    assert len({pid for pid, _ in seen}) == 3


async def test_rank_zero_can_be_called_alone(group: WorkerGroup):
    zero, *others = [pid for pid, _ in await group.all("echo")]
    pid, arguments = await group.first("echo", 7)
    assert (pid, arguments) == (zero, (7,))
    assert await group.all("num_calls") == [2, 1, 1]
    assert zero not in others


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 7])
async def test_items_are_split_over_the_ranks_and_gathered_in_order_however_many_there_are(
    group: WorkerGroup, count: int
):
    items = [ray.put(number) for number in range(count)]
    shares = [[2, 0], [3, 1, 6], [5, 4]]
    given = [[index for index in share if index < count] for share in shares]
    results = [await ref for ref in await group.split("square", items=items, shares=given)]
    assert results == [number * number for number in range(count)]
    assert await group.all("num_calls") == [1, 1, 1], "a rank without a share is called too: it meets the others"


async def test_neighbouring_ranks_that_compute_together_are_given_the_same_share(local_ray: Path):
    pool = ResourcePool(num_processes=4, num_cpus=0.1)
    ranks = spawn(RankWorker, pool, {}, "echo", max_concurrency=4)
    group = WorkerGroup("echo", ranks, ranks_per_share=2)
    assert group.num_shares == 2
    seen = await group.each("echo", [(rank,) for rank in range(4)])
    by_share = await group.each_share("echo", [("a",), ("b",)])
    assert by_share == [(seen[0][0], ("a",)), (seen[2][0], ("b",))]
    items = [ray.put(number) for number in range(5)]
    results = [await ref for ref in await group.split("square", items=items, shares=[[4, 1], [0, 2, 3]])]
    assert results == [0, 1, 4, 9, 16]
    assert await group.all("num_calls") == [3, 3, 3, 3]


@pytest.mark.alone  # its time is measured
async def test_an_error_on_one_rank_is_raised_at_once_with_its_rank_and_traceback_while_others_wait(
    group: WorkerGroup,
):
    await group.all("echo")
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"(?s)echo 1: .*in fail_on.*ZeroDivisionError.*rank 1 has a bug"):
        async with asyncio.timeout(60):  # the others would wait for an hour
            await group.each("fail_on", [(rank, 1) for rank in range(3)])
    assert time.monotonic() - began < 5


@pytest.mark.alone  # its time is measured
@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [("find", ([1, 2], 3), "it raised StopIteration"), ("exit", (), "it raised SystemExit: bucket 7 has no weight")],
)
async def test_what_no_event_loop_can_take_is_an_error_of_the_rank_like_any_other(
    local_ray: Path, method: str, arguments: tuple[Any, ...], words: str
):
    pool = ResourcePool(num_processes=2, num_cpus=0.1)
    group = WorkerGroup("echo", spawn(ComputingRank, pool, {}, "echo", max_concurrency=4))
    assert await group.all("call", "echo", "find", [1, 2], 1) == [2, 2]
    began = time.monotonic()
    with pytest.raises(WorkerError, match=rf"(?s)echo [01]: .*in {method}.*{words}"):
        async with asyncio.timeout(60):
            await group.all("call", "echo", method, *arguments)
    assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_an_error_that_cannot_be_unpickled_is_raised_like_any_other_and_ends_the_group(group: WorkerGroup):
    with pytest.raises(WorkerError, match=r"(?s)echo 1: .*in fail_beyond_pickling_on.*status 503: asked by rank 1"):
        async with asyncio.timeout(60):
            await group.each("fail_beyond_pickling_on", [(rank, 1) for rank in range(3)])
    with pytest.raises(WorkerError, match="status 503"):
        await group.all("echo")


@pytest.mark.slow
async def test_an_error_of_ours_says_on_which_rank_it_was_raised(group: WorkerGroup):
    with pytest.raises(ConfigError, match="no such model") as raised:
        await group.each("refuse_on", [(rank, 2) for rank in range(3)])
    [note] = raised.value.__notes__
    assert note.startswith("raised in echo 2: ")
    assert "in refuse_on" in note


async def ask_for_ever(rank: WorkerHandle) -> None:
    while True:
        await rank.echo()


async def test_an_error_ends_the_group_so_that_no_rank_hangs(group: WorkerGroup):
    await group.all("echo")
    with pytest.raises(WorkerError):
        await group.each("fail_on", [(rank, 0) for rank in range(3)])
    for rank in group.ranks:
        with pytest.raises(WorkerDiedError):
            await ask_for_ever(rank)  # it may answer until Ray has come to kill it
    with pytest.raises(WorkerError, match="rank 0 has a bug"):
        await group.all("echo")


async def test_the_death_of_a_rank_is_reported_and_not_the_errors_of_the_others(group: WorkerGroup):
    pids = [pid for pid, _ in await group.all("echo")]
    with pytest.raises(ModelDiedError, match="echo 2: its process died"):
        await group.each("die_on", [(rank, 2, pids[2]) for rank in range(3)])


async def test_a_rank_that_lost_another_one_is_no_bug_even_where_all_live(group: WorkerGroup):
    await group.all("echo")
    with pytest.raises(PeerLostError, match="connection closed by peer"):
        await group.each("lose_peer_on", [(rank, 1) for rank in range(3)])


async def test_a_group_is_set_up_when_all_its_ranks_have_a_place(local_ray: Path):
    seen: list[int] = []

    async def until_placed(ranks: Sequence[WorkerHandle]) -> None:
        for rank in ranks:
            await rank.until_placed()
        seen.append(len(ranks))
        raise InsufficientResourcesError("no place for `echo 2`")

    ranks = spawn(RankWorker, ResourcePool(num_processes=2, num_cpus=0.1), {}, "echo", max_concurrency=4)
    group = WorkerGroup("echo", ranks, until_placed=until_placed)
    with pytest.raises(InsufficientResourcesError, match="no place"):
        await group.setup()
    assert seen == [2]
    with pytest.raises(WorkerDiedError):
        await ask_for_ever(ranks[0])
