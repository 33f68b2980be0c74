"""Ten thousand calls at once of the client, over HTTP, to the server with its queue and verdicts; programs are left out."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agentrl.judge.client import JudgeClient
from agentrl.types import Deadline
from code_judge_server.schemas import Verdict

pytestmark = pytest.mark.timeout(300)

NUM_CALLS = 10_000
DEADLINE_S = 280.0
CONCURRENCY = 4
BATCH_SIZE = 64
MAX_CONNECTIONS = 9 * CONCURRENCY
"""Eight per sender, and one that each may have begun besides."""


class InstantJudge:
    """A server process, which can be killed and started again at the same address, which nobody else takes meanwhile."""

    def __init__(self, port: int = 0) -> None:
        script = Path(__file__).parent / "instant_judge.py"
        host = f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250}.200"
        arguments = ["--host", host, "--port", str(port), "--require-isolation", "D", "--exit-with-stdin"]
        arguments += ["--log-level", "error"]
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = next(line for line in self.process.stdout if "listening on" in line).split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def metrics(self) -> dict[str, float]:
        """Return the sums of the metrics over their labels."""
        sums: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=100).text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def instant_judge() -> Iterator[list[InstantJudge]]:
    running = [InstantJudge()]
    try:
        yield running
    finally:
        for judge in running:
            judge.kill()


@contextlib.asynccontextmanager
async def client_of(judge: InstantJudge):
    client = JudgeClient(
        [judge.url], token=None, concurrency=CONCURRENCY, batch_size=BATCH_SIZE, batch_timeout_s=DEADLINE_S
    )
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()


def programs() -> list[str]:
    return [f"program {number}" for number in range(NUM_CALLS)]


def start_calls(client: JudgeClient) -> list[asyncio.Task[Verdict]]:
    return [asyncio.create_task(client.run(code, deadline=Deadline.after(DEADLINE_S))) for code in programs()]


def assert_each_has_its_own(verdicts: list[Verdict]) -> None:
    assert [verdict.stdout for verdict in verdicts] == programs()
    assert {verdict.status for verdict in verdicts} == {"accepted"}
    assert len({verdict.id for verdict in verdicts}) == NUM_CALLS


async def test_each_of_ten_thousand_calls_is_judged_once_and_answered_once() -> None:
    with instant_judge() as (judge,):
        async with client_of(judge) as client:
            calls = start_calls(client)
            num_open = 0.0
            while not all(call.done() for call in calls):
                num_open = max(num_open, (await asyncio.to_thread(judge.metrics))["code_judge_open_connections"])
                await asyncio.sleep(0.1)
            assert_each_has_its_own(await asyncio.gather(*calls))
            stats = client.take_stats()
        counted = judge.metrics()
    assert counted["code_judge_verdicts_total"] == NUM_CALLS
    assert counted["code_judge_shared_verdicts_total"] == 0
    assert (stats.num_submissions, stats.num_retries, stats.num_unavailable) == (NUM_CALLS, 0, 0)
    assert stats.num_requests < 2 * NUM_CALLS / BATCH_SIZE
    assert num_open <= MAX_CONNECTIONS + 1, "one is this test's own"


@pytest.mark.slow
async def test_nothing_is_lost_or_mixed_up_when_the_server_dies_in_the_middle_of_ten_thousand() -> None:
    with instant_judge() as running:
        async with client_of(running[0]) as client:
            calls = start_calls(client)
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            running[0].kill()
            num_done = sum(call.done() for call in calls)
            running.append(await asyncio.to_thread(InstantJudge, running[0].port))
            assert_each_has_its_own(await asyncio.gather(*calls))
            stats = client.take_stats()
            counted = running[1].metrics()["code_judge_verdicts_total"]
    assert 0 < num_done < NUM_CALLS, "it was not killed in the middle"
    assert stats.num_unavailable == 0
    assert stats.num_dropped_hosts > 0
    assert stats.num_retries > 0
    assert counted <= NUM_CALLS - num_done, "what had its verdict is not sent again"
