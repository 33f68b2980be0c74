"""Reference for what is equal: the mathematics. What hangs is an expansion into millions of terms."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from agentrl.errors import RolloutError
from agentrl.rewards.answers.equivalence import EquivalencePool
from agentrl.types import Deadline
from tests.processes import children_since, still_running

HANGS = "((x+y+z)^9+1)^9+((x-y+z)^8+2)^9"

ROOTS = (r"\sqrt{8}", r"2\sqrt{2}")
"""Equal, and decided by sympy only."""


Workers = Callable[[], list[psutil.Process]]


@pytest.fixture
def workers() -> Workers:
    """Return the processes of this test's pool: other tests of this process may have pools."""
    others = psutil.Process().children()
    return lambda: [child for child in children_since(others) if is_worker(child)]


@pytest.fixture
async def pool(workers: Workers) -> AsyncIterator[EquivalencePool]:
    """Compare with the time that a slow machine takes."""
    async with started(timeout_s=100.0) as pool:
        yield pool


@pytest.fixture
async def hasty_pool(workers: Workers) -> AsyncIterator[EquivalencePool]:
    """Give a comparison up soon."""
    async with started(timeout_s=1.0) as pool:
        yield pool


@asynccontextmanager
async def started(*, timeout_s: float) -> AsyncIterator[EquivalencePool]:
    pool = EquivalencePool(num_processes=2, timeout_s=timeout_s)
    await pool.start(deadline=Deadline.after(200))
    yield pool
    await pool.aclose()


def soon() -> Deadline:
    return Deadline.after(250)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "math_process" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie has no command line any more
        return False


async def test_equal_answers_are_equal_and_others_are_not(pool: EquivalencePool) -> None:
    for reference, answer in [
        ("1/2", "0.5"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("1000", "1,000"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        ("x^2 + 2x + 1", "(x + 1)^2"),
        ("-5", "- 5"),
    ]:
        assert await pool.equivalent(reference, answer, deadline=soon()), (reference, answer)
    for reference, answer in [("42", "43"), ("(1, 2)", "(2, 1)"), ("1/3", "0.33"), ("5", ""), ("5", r"\frac{")]:
        assert not await pool.equivalent(reference, answer, deadline=soon()), (reference, answer)


async def test_a_comparison_that_hangs_is_a_wrong_answer_and_its_process_is_killed(
    hasty_pool: EquivalencePool, workers: Workers
) -> None:
    [before] = workers()
    assert not await hasty_pool.equivalent("x+1", HANGS, deadline=soon())
    assert hasty_pool.take_num_given_up() == 1
    assert await hasty_pool.equivalent(*ROOTS, deadline=soon())
    assert [process.pid for process in workers()] == [before.pid]


async def begin_and_hold(pool: EquivalencePool, workers: Workers) -> asyncio.Task[bool]:
    """Begin a comparison that had its slice, and stop its process: how long it computes depends on the machine."""
    hang = asyncio.create_task(pool.equivalent("x+1", HANGS, deadline=soon()))
    seen: list[psutil.Process] = []
    while len(seen) < 2:
        await asyncio.sleep(0.01)
        seen += [child for child in workers() if child not in seen and compares(child)]
    seen[-1].suspend()
    return hang


def compares(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and is_worker(process) and is_worker(parent)


async def test_one_hang_delays_no_other_check(pool: EquivalencePool, workers: Workers) -> None:
    hang = await begin_and_hold(pool, workers)
    for _ in range(3):
        assert await pool.equivalent(*ROOTS, deadline=soon())
    assert not hang.done()
    hang.cancel()


async def test_a_pool_that_is_too_busy_is_nobodys_wrong_answer(hasty_pool: EquivalencePool) -> None:
    hangs = [asyncio.create_task(hasty_pool.equivalent("x+1", HANGS, deadline=soon())) for _ in range(2)]
    await asyncio.sleep(0.02)
    with pytest.raises(RolloutError, match="no decision by the deadline"):
        await hasty_pool.equivalent(*ROOTS, deadline=Deadline.after(0.01))
    assert await asyncio.gather(*hangs) == [False, False]
    assert await hasty_pool.equivalent(*ROOTS, deadline=soon())


@pytest.mark.slow
async def test_a_comparison_that_had_its_slice_is_wrong_where_no_turn_is_left_before_its_deadline(
    pool: EquivalencePool, workers: Workers
) -> None:
    first = await begin_and_hold(pool, workers)
    assert not await pool.equivalent("x+1", HANGS, deadline=Deadline.after(5))
    assert not first.done()
    first.cancel()


async def test_processes_killed_from_outside_are_replaced(pool: EquivalencePool, workers: Workers) -> None:
    for process in workers():
        process.kill()
    await asyncio.sleep(0.5)
    assert await pool.equivalent(*ROOTS, deadline=soon())
    assert pool.take_num_given_up() == 0


async def kill_comparing_processes(server: psutil.Process, until: asyncio.Task[bool]) -> None:
    """Kill each process that is forked to compare something."""
    while not until.done():
        await asyncio.sleep(0.05)
        for process in server.children():
            process.kill()


async def test_an_answer_that_kills_its_process_gets_one_more_chance_and_is_then_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = psutil.Process().children()
    pool = EquivalencePool(num_processes=2, timeout_s=250.0)
    await pool.start(deadline=Deadline.after(100))
    [server] = [child for child in psutil.Process().children() if child not in others]
    check = asyncio.create_task(pool.equivalent("x+1", HANGS, deadline=soon()))
    await kill_comparing_processes(server, until=check)
    assert not await check
    assert pool.take_num_given_up() == 1
    assert [record.message[:28] for record in caplog.records] == ["answer check: a process died"] * 2
    await pool.aclose()


async def test_closing_leaves_no_process(workers: Workers) -> None:
    pool = EquivalencePool(num_processes=2, timeout_s=60.0)
    await pool.start(deadline=Deadline.after(200))
    hang = asyncio.create_task(pool.equivalent("x+1", HANGS, deadline=soon()))
    async with asyncio.timeout(60):
        while len(processes := workers()) < 2:  # noqa: ASYNC110 - processes have no event
            await asyncio.sleep(0.02)
    hang.cancel()
    await pool.aclose()
    assert not still_running(processes)


async def test_closing_ends_comparisons_that_were_just_forked(workers: Workers) -> None:
    pool = EquivalencePool(num_processes=20, timeout_s=60.0)
    await pool.start(deadline=Deadline.after(200))
    [server] = workers()
    stopping = asyncio.create_task(asyncio.to_thread(stop_children, server.pid, number=20))
    hangs = [asyncio.create_task(pool.equivalent("x+1", HANGS, deadline=soon())) for _ in range(20)]
    await stopping
    async with asyncio.timeout(30):
        await pool.aclose()
    for error in await asyncio.gather(*hangs, return_exceptions=True):
        assert isinstance(error, RolloutError)


def stop_children(parent: int, *, number: int) -> None:
    """Stop each child as soon as it is seen; without a pause in the loop, some have made no system call yet."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    stopped: set[str] = set()
    until = time.monotonic() + 60
    while len(stopped) < number:
        assert time.monotonic() < until
        for pid in set(children.read_text().split()) - stopped:
            os.kill(int(pid), signal.SIGSTOP)
            stopped.add(pid)


def test_nothing_is_left_behind_when_the_worker_is_killed() -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from agentrl.rewards.answers.equivalence import EquivalencePool
        from agentrl.types import Deadline

        async def main():
            pool = EquivalencePool(num_processes=2, timeout_s=600.0)
            await pool.start(deadline=Deadline.after(200))
            hang = asyncio.create_task(pool.equivalent("x+1", {HANGS!r}, deadline=Deadline.after(600)))
            await asyncio.sleep(0.5)
            print("hanging", flush=True)
            await hang

        if __name__ == "__main__":
            asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "hanging\n"
        children = psutil.Process(worker.pid).children(recursive=True)
        assert len(children) >= 2
        worker.send_signal(signal.SIGKILL)
    assert not still_running(children)


async def test_a_comparison_that_nobody_waits_for_keeps_its_slot_until_its_process_has_ended(workers: Workers):
    async with started(timeout_s=100.0) as pool:
        for _ in range(3):
            waiting = [asyncio.create_task(pool.equivalent(HANGS, "1", deadline=soon())) for _ in range(2)]
            await asyncio.sleep(0.3)
            assert len(workers()) <= 3, "the server, and one for each slot"
            for task in waiting:
                task.cancel()
        assert await pool.equivalent(*ROOTS, deadline=soon())


async def test_a_comparison_that_a_closed_pool_ends_starts_no_process():
    async with started(timeout_s=100.0) as pool:
        waiting = asyncio.create_task(pool.equivalent(HANGS, "1", deadline=soon()))
        await asyncio.sleep(0.5)
        await pool.aclose()
        with pytest.raises(RolloutError, match="it is closed"):
            await waiting
        assert pool._server is None
