"""Lag of an event loop, and of an idle one beside it, which is the machine's own lag.

On a busy machine the CPU time of the loop's thread between two timers shows the loop's own part: without other work no timer
would be later than that.

Run as a program, it is the idle loop, until its standard input is closed.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

_INTERVAL_S = 0.01


async def sample_lag(lags_s: list[float], computed_s: list[float]) -> None:
    """Note for ever how late the running loop comes to a timer, and how long its thread computed since the one before."""
    while True:
        before, cpu_before = time.perf_counter(), time.thread_time()
        await asyncio.sleep(_INTERVAL_S)
        lags_s.append(time.perf_counter() - before - _INTERVAL_S)
        computed_s.append(time.thread_time() - cpu_before)


@contextlib.contextmanager
def idle_lag(lags_s: list[float]) -> Iterator[None]:
    """Measure the lag of a loop that does nothing, in a process of its own, for as long as the context lasts."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        lags_s += json.loads(process.communicate()[0])


async def _do_nothing() -> list[float]:
    lags_s: list[float] = []
    sampling = asyncio.create_task(sample_lag(lags_s, []))
    await asyncio.sleep(
        2 * _INTERVAL_S
    )  # one sample at least, should the context be over before this process has begun
    await asyncio.to_thread(sys.stdin.read)
    sampling.cancel()
    return lags_s


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_do_nothing())))
