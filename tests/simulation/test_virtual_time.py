import asyncio
import time

import pytest

from agentrl import clock
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Deadline


def test_sleepers_wake_in_order_and_at_their_time():
    async def main() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(sleep("c", 3600), sleep("a", 0.5), sleep("b", 60))
        return woken

    started = time.monotonic()
    assert run_in_virtual_time(main()) == [
        ("a", pytest.approx(0.5)),
        ("b", pytest.approx(60)),
        ("c", pytest.approx(3600)),
    ]
    assert time.monotonic() - started < 2


def test_time_stands_still_while_a_thread_computes():
    async def main() -> float:
        timer = asyncio.create_task(asyncio.sleep(0.01))
        before = clock.now()
        await asyncio.to_thread(time.sleep, 0.2)
        assert not timer.done()
        return clock.now() - before

    assert run_in_virtual_time(main()) == 0.0


def test_deadlines_and_timeouts_follow_the_virtual_clock():
    async def main() -> None:
        deadline = Deadline.after(100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        assert deadline.remaining_s() == pytest.approx(70)
        await asyncio.sleep(80)
        assert deadline.expired

    run_in_virtual_time(main())


def test_the_clock_is_the_real_one_again_afterwards():
    async def main() -> None:
        await asyncio.sleep(1e6)

    run_in_virtual_time(main())
    assert clock.now() == pytest.approx(time.monotonic(), abs=1)
