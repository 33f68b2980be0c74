import asyncio
import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

from agentrl.observability.loop_lag import LoopLag, stack_of

pytestmark = pytest.mark.alone


def block(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_call_that_blocks_the_loop_is_measured_named_and_warned_of(caplog: pytest.LogCaptureFixture):
    lag = LoopLag("worker 3")
    await asyncio.sleep(0.06)
    block(0.5)
    await asyncio.sleep(0.06)
    taken = lag.take()
    lag.stop()
    assert taken.max_s > 0.4
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "worker 3: event loop late by" in record.message
    assert re.search(rf"blocked by {re.escape(__file__)}:\d+ block; ", record.message)


def block_at_several_lines(number: int) -> None:
    if number == 0:
        time.sleep(0.4)
    else:
        time.sleep(0.4 + number / 1000)


async def test_a_function_that_blocks_at_several_lines_is_one_cause(caplog: pytest.LogCaptureFixture):
    lag = LoopLag("worker")
    await asyncio.sleep(0.06)
    for number in range(2):
        block_at_several_lines(number)
        await asyncio.sleep(0.12)
    lag.stop()
    records = [record for record in caplog.records if "block_at_several_lines" in record.message]
    lines = {re.findall(r":(\d+) block_at_several_lines", record.message)[0] for record in records}
    assert len(lines) == 2, "each message names the line"
    assert len({record.__dict__["cause"] for record in records}) == 1, "so that the second is counted, and not shown"


async def test_what_blocks_inside_a_library_is_laid_to_the_code_that_called_it(caplog: pytest.LogCaptureFixture):
    lag = LoopLag("worker")
    await asyncio.sleep(0.06)
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.5)"], check=True)  # noqa: ASYNC221 - the test's subject
    await asyncio.sleep(0.06)
    lag.stop()
    assert __file__ in caplog.text


async def test_each_report_starts_again_from_zero():
    lag = LoopLag("worker")
    await asyncio.sleep(0.4)
    lag.take()
    lag.stop()
    assert lag.take().max_s == 0.0, "it starts again from zero"


def test_the_watch_ends_with_its_loop():
    async def leave_it_running() -> None:
        LoopLag("what is gone")

    asyncio.run(leave_it_running())
    while any(thread.name == "lag of what is gone" for thread in threading.enumerate()):
        time.sleep(0.01)


def numbers(stopped: threading.Event) -> Iterator[int]:
    while not stopped.is_set():
        yield len(list(map(str, range(3))))


def count(stopped: threading.Event) -> None:
    sum(numbers(stopped))


def test_the_stack_of_a_thread_that_goes_on_meanwhile_is_one_that_it_had():
    stopped = threading.Event()
    thread = threading.Thread(target=count, args=(stopped,))
    thread.start()
    assert thread.ident is not None
    with tempfile.TemporaryFile(buffering=0) as scratch:
        stacks = {tuple(call.function for call in stack_of(thread.ident, scratch)) for _ in range(300)}
        stopped.set()
        thread.join()
        assert stack_of(thread.ident, scratch) == []
    bottom = ("count", "run", "_bootstrap_inner", "_bootstrap")
    assert any(stack[-4:] == bottom for stack in stacks)
    assert stacks <= {
        bottom[2:],
        bottom[1:],
        bottom,
        ("numbers", *bottom),
        ("is_set", "numbers", *bottom),
    }
