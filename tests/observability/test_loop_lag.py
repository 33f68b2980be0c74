import asyncio
import logging
import subprocess
import sys
import time

import pytest

from agentrl.observability.loop_lag import LoopLag

pytestmark = pytest.mark.alone


async def test_a_call_that_blocks_the_loop_is_measured_and_warned_of(caplog: pytest.LogCaptureFixture):
    lag = LoopLag("worker 3")
    await asyncio.sleep(0.06)
    time.sleep(0.5)  # noqa: ASYNC251 - the test's subject
    await asyncio.sleep(0.06)
    taken = lag.take()
    lag.stop()
    assert taken.max_s > 0.4
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "worker 3: event loop late by" in record.message


async def test_each_report_starts_again_from_zero():
    lag = LoopLag("worker")
    await asyncio.sleep(0.4)
    lag.take()
    lag.stop()
    assert lag.take().max_s == 0.0, "it starts again from zero"


def test_records_of_thousands_of_calls_cause_no_collection():
    program = """
import gc
from agentrl.observability.loop_lag import collect_rarely
collect_rarely()
before = [generation["collections"] for generation in gc.get_stats()]
records = [[number] for number in range(45_000)]
assert gc.get_freeze_count() > 1000
assert [generation["collections"] for generation in gc.get_stats()] == before
more = [[number] for number in range(10_000)]
assert [generation["collections"] for generation in gc.get_stats()] != before
"""
    subprocess.run([sys.executable, "-c", program], check=True)
