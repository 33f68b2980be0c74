"""Reference for what is equal: the mathematics. What hangs is a tower of powers, which takes Python's integers for ever."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from agentrl.errors import RolloutError
from agentrl.rewards.math_equivalence import EquivalencePool
from agentrl.types import Deadline
from tests.processes import still_running

HANGS = "9^{9^{9^{9}}}"


@pytest.fixture
async def pool() -> AsyncIterator[EquivalencePool]:
    """Checks have the time that a slow machine takes."""
    async with started(timeout_s=100.0) as pool:
        yield pool


@pytest.fixture
async def hasty_pool() -> AsyncIterator[EquivalencePool]:
    """Gives a check up soon."""
    async with started(timeout_s=5.0) as pool:
        yield pool


@asynccontextmanager
async def started(*, timeout_s: float) -> AsyncIterator[EquivalencePool]:
    pool = EquivalencePool(num_processes=2, timeout_s=timeout_s)
    await pool.start(deadline=Deadline.after(200))
    yield pool
    await pool.aclose()


def soon() -> Deadline:
    return Deadline.after(250)


def worker_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if is_worker(child)]


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


async def test_a_check_that_hangs_is_a_wrong_answer_its_process_is_killed_and_replaced(
    hasty_pool: EquivalencePool,
) -> None:
    before = {process.pid for process in worker_processes()}
    assert not await hasty_pool.equivalent("1", HANGS, deadline=soon())
    assert hasty_pool.take_num_given_up() == 1
    assert await hasty_pool.equivalent("1/2", "0.5", deadline=soon())
    async with asyncio.timeout(100):
        while len(after := {process.pid for process in worker_processes()}) < 2:  # noqa: ASYNC110 - processes have no event
            await asyncio.sleep(0.05)
    assert len(before & after) == 1


async def test_one_hang_delays_no_other_check(pool: EquivalencePool) -> None:
    hang = asyncio.create_task(pool.equivalent("1", HANGS, deadline=soon()))
    await asyncio.sleep(0.3)
    for _ in range(5):
        assert await pool.equivalent("1/2", "0.5", deadline=soon())
    assert not hang.done()
    hang.cancel()


async def test_a_pool_that_is_too_busy_is_nobodys_wrong_answer(hasty_pool: EquivalencePool) -> None:
    hangs = [asyncio.create_task(hasty_pool.equivalent("1", HANGS, deadline=soon())) for _ in range(2)]
    await asyncio.sleep(0.5)
    with pytest.raises(RolloutError, match="busy until the deadline"):
        await hasty_pool.equivalent("1/2", "0.5", deadline=Deadline.after(0.5))
    assert await asyncio.gather(*hangs) == [False, False]
    assert await hasty_pool.equivalent("1/2", "0.5", deadline=soon())


async def test_processes_killed_from_outside_are_replaced(pool: EquivalencePool) -> None:
    for process in worker_processes():
        process.kill()
    await asyncio.sleep(0.5)
    assert await pool.equivalent("1/2", "0.5", deadline=soon())
    assert pool.take_num_given_up() == 0


async def kill_comparing_processes(pool: EquivalencePool, until: asyncio.Task[bool]) -> None:
    """Kill each process that is to compare something, and has it for a moment."""
    while not until.done():
        await asyncio.sleep(0.2)
        for process in pool._processes:
            if process._comparing:
                process._process.kill()


async def test_an_answer_that_kills_its_process_gets_one_more_chance_and_is_then_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = EquivalencePool(num_processes=2, timeout_s=250.0)
    await pool.start(deadline=Deadline.after(100))
    check = asyncio.create_task(pool.equivalent("1", HANGS, deadline=soon()))
    await kill_comparing_processes(pool, until=check)
    assert not await check
    assert pool.take_num_given_up() == 1
    assert [record.message[:28] for record in caplog.records] == ["answer check: a process died"] * 2
    await pool.aclose()


async def test_closing_leaves_no_process() -> None:
    pool = EquivalencePool(num_processes=2, timeout_s=2.0)
    await pool.start(deadline=Deadline.after(200))
    processes = worker_processes()
    assert len(processes) == 2
    await pool.aclose()
    assert not still_running(processes)


def test_nothing_is_left_behind_when_the_worker_is_killed() -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from agentrl.rewards.math_equivalence import EquivalencePool
        from agentrl.types import Deadline

        async def main():
            pool = EquivalencePool(num_processes=2, timeout_s=600.0)
            await pool.start(deadline=Deadline.after(200))
            hang = asyncio.create_task(pool.equivalent("1", {HANGS!r}, deadline=Deadline.after(600)))
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
