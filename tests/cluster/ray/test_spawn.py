import asyncio
import re
from pathlib import Path

import pytest

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.workers.engine_calls import EngineHandle
from agentrl.errors import EngineError, WorkerDiedError, WorkerError
from agentrl.types import Deadline
from tests.cluster.workers import PlainWorker, WaitingEngine

pytestmark = pytest.mark.ray


@pytest.fixture
def workers(local_ray: Path) -> list[WorkerHandle]:
    return spawn(PlainWorker, ResourcePool(num_processes=2, num_cpus=0.5), {"a": 1}, "echo", max_concurrency=10)


async def test_a_plain_class_becomes_processes_of_their_own(workers: list[WorkerHandle]):
    described = await asyncio.gather(*(worker.describe() for worker in workers))
    assert [(config, role) for config, role, _ in described] == [({"a": 1}, "echo")] * 2
    assert len({pid for _, _, pid in described}) == 2


@pytest.mark.slow
async def test_workers_run_on_uvloop(workers: list[WorkerHandle]):
    assert await workers[0].loop_name() == "uvloop"


async def test_a_file_beside_the_config_can_be_imported_in_every_worker(workers: list[WorkerHandle]):
    assert await asyncio.gather(*(worker.import_user_code() for worker in workers)) == [42, 42]


async def test_an_error_of_ours_comes_out_as_itself_with_a_note_of_where_it_was_raised(workers: list[WorkerHandle]):
    with pytest.raises(EngineError) as raised:
        await workers[0].fail_as_expected()
    assert str(raised.value) == "out of pages"
    [note] = raised.value.__notes__
    assert re.match(r"(?s)raised in echo 0: .*in fail_as_expected", note)


async def test_a_bug_comes_out_with_the_worker_and_its_traceback(workers: list[WorkerHandle]):
    with pytest.raises(WorkerError, match=r"(?s)echo 0: .*ZeroDivisionError.*a bug of ours"):
        await workers[0].fail_by_a_bug()


async def test_the_second_part_of_a_pair_outlives_its_worker(workers: list[WorkerHandle]):
    size, ref = await workers[0].call_keeping_second("pair", 2_000_000)
    with pytest.raises(WorkerDiedError):
        await workers[0].die()
    assert size == len(await ref) == 2_000_000


async def test_a_dead_worker_is_a_typed_error(workers: list[WorkerHandle]):
    with pytest.raises(WorkerDiedError, match="echo 1: its process died"):
        await workers[1].die()
    with pytest.raises(WorkerDiedError):
        await workers[1].describe()


@pytest.mark.slow
async def test_cancelling_a_call_cancels_the_work(workers: list[WorkerHandle], tmp_path: Path):
    note = tmp_path / "note"
    await workers[0].describe()  # the process is up
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await workers[0].sleep_until_cancelled(str(note))
    for _ in range(600):
        if note.exists() and note.read_text():
            break
        await asyncio.sleep(0.1)
    assert note.read_text() == "cancelled"


async def test_a_deadline_travels_as_the_time_that_remains(workers: list[WorkerHandle]):
    assert 900 < await workers[0].remaining_s(Deadline.after(1000)) <= 1000


async def test_a_handle_can_be_given_to_another_worker(workers: list[WorkerHandle]):
    assert await workers[0].call_other(workers[1]) == "echo"


@pytest.mark.slow
async def test_a_worker_makes_one_handle_of_an_engine_and_what_it_asked_ends_when_it_dies(workers: list[WorkerHandle]):
    pool = ResourcePool(num_processes=1, num_cpus=0.5)
    engine = EngineHandle.of(spawn(WaitingEngine, pool, {}, "engine", max_concurrency=10)[0])
    assert [await workers[0].was_given(engine) for _ in range(3)] == [False, True, True]
    asked = [asyncio.create_task(worker.ask(engine, f"t{n}-0")) for n, worker in enumerate(workers)]
    await until_waiting(engine, {"t0-0", "t1-0"})
    with pytest.raises(WorkerDiedError):
        await workers[0].die()
    await engine.abort_requests_of(workers[0].caller_id)
    await until_waiting(engine, {"t1-0"})
    await engine.abort_requests_of(workers[1].caller_id)
    assert (await asked[1]).token_ids == []
    with pytest.raises(WorkerDiedError):
        await asked[0]


async def until_waiting(engine: EngineHandle, request_ids: set[str]) -> None:
    async with asyncio.timeout(120):
        while await engine.waits_for() != request_ids:  # noqa: ASYNC110  # it is in another process
            await asyncio.sleep(0.05)
