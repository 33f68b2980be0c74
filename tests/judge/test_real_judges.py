"""Real judges, several, killed in the middle of the work: every call gets its verdict, once, and the right one."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

from agentrl.judge.client import JudgeClient
from agentrl.types import Deadline
from code_judge_server.schemas import Verdict, VerdictStatus

NUM_CALLS = 240
WITHOUT_MODULES = ["--preloads", '{"sympy": [], "sci": []}', "--max-sessions", "0"]
"""Settings of a judge that starts sooner."""


class Judge:
    """A judge that can be killed and started again at the same address, which nobody else takes meanwhile.

    Args:
        same_address_as: the judge whose address it takes.
        settings: words of its command line.
    """

    _numbers = itertools.count(1)

    def __init__(self, *settings: str, same_address_as: "Judge | None" = None) -> None:
        self.host = (
            same_address_as.host
            if same_address_as
            else f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250}.{next(self._numbers)}"
        )
        address = ["--host", self.host, "--port", str(same_address_as.port if same_address_as else 0)]
        command = [sys.executable, "-m", "code_judge_server", *address, "--require-isolation", "D"]
        self.process = subprocess.Popen(
            [*command, "--exit-with-stdin", "--log-level", "warning", *WITHOUT_MODULES, *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = next(line for line in self.process.stdout if "listening on" in line).split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def num_judged(self) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("code_judge_verdicts_total"))

    def num_running(self) -> int:
        return httpx.get(f"{self.url}/v1/health", timeout=60).json()["num_running"]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def judges(num: int) -> Iterator[list[Judge]]:
    """Judges that are all gone at the end, those that the test puts into the list too."""
    running = [Judge() for _ in range(num)]
    try:
        yield running
    finally:
        for judge in running:
            judge.kill()


async def until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is a count
            await asyncio.sleep(0.01)


class Calls:
    """Calls in flight, each with an answer of its own."""

    def __init__(self, client: JudgeClient) -> None:
        self.num_done = 0
        self._tasks = [asyncio.create_task(self._call(client, number)) for number in range(NUM_CALLS)]

    async def _call(self, client: JudgeClient, number: int) -> Verdict:
        program = f"print({number} ** 2)"
        verdict = await client.run(program, expected_output=str(number**2), deadline=Deadline.after(280))
        self.num_done += 1
        return verdict

    async def until_a_third_is_done(self) -> None:
        await until(lambda: self.num_done > NUM_CALLS / 3)
        assert self.num_done < NUM_CALLS * 0.8, "too late to kill anything in the middle"

    async def all_have_their_own_verdict(self) -> None:
        verdicts = await asyncio.gather(*self._tasks)
        assert Counter(verdict.status for verdict in verdicts) == {VerdictStatus.ACCEPTED: NUM_CALLS}
        assert [verdict.stdout for verdict in verdicts] == [f"{number**2}\n" for number in range(NUM_CALLS)]


@contextlib.asynccontextmanager
async def client_of(*running: Judge, batch_size: int = 64) -> AsyncIterator[JudgeClient]:
    client = JudgeClient(
        [judge.url for judge in running], token=None, concurrency=8, batch_size=batch_size, batch_timeout_s=250.0
    )
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()


@pytest.mark.slow
async def test_nothing_is_lost_when_one_of_two_judges_is_killed() -> None:
    with judges(2) as running:
        async with client_of(*running) as client:
            calls = Calls(client)
            await calls.until_a_third_is_done()
            running[0].kill()
            await calls.all_have_their_own_verdict()
            stats = client.take_stats()
            assert stats.num_unavailable == 0
            assert stats.num_retries > 0
            assert stats.num_dropped_hosts == 1


@pytest.mark.slow
async def test_nothing_is_lost_when_the_only_judge_is_killed_and_comes_back() -> None:
    with judges(1) as running:
        async with client_of(*running) as client:
            calls = Calls(client)
            await calls.until_a_third_is_done()
            running[0].kill()
            running.append(await asyncio.to_thread(Judge, same_address_as=running[0]))
            await calls.all_have_their_own_verdict()
            assert client.take_stats().num_unavailable == 0


@pytest.mark.slow
async def test_nothing_is_lost_when_the_only_judge_is_told_to_stop_in_the_middle_of_programs_and_comes_back() -> None:
    stopping = Judge("--num-slots", "2", "--spare-slots", "0", "--drain-timeout-s", "0.1")
    with judges(0) as running:
        running.append(stopping)
        async with client_of(stopping) as client:
            code = "import time; time.sleep(2.5); print('done')"
            verdicts = [asyncio.create_task(client.run(code, deadline=Deadline.after(200))) for _ in range(4)]
            await until(lambda: stopping.num_running() == 2)
            stopping.process.terminate()
            assert await asyncio.to_thread(stopping.process.wait, 60) == 0
            running.append(await asyncio.to_thread(Judge, same_address_as=stopping))
            assert [(await verdict).stdout for verdict in verdicts] == ["done\n"] * 4


@pytest.mark.slow
async def test_a_judge_that_is_told_to_stop_finishes_what_it_has_and_the_rest_goes_elsewhere() -> None:
    with judges(2) as running:
        async with client_of(*running) as client:
            calls = Calls(client)
            await calls.until_a_third_is_done()
            running[0].process.terminate()
            await calls.all_have_their_own_verdict()
            assert await asyncio.to_thread(running[0].process.wait, 60) == 0
            assert client.take_stats().num_unavailable == 0


async def test_programs_that_nobody_waits_for_are_killed() -> None:
    with judges(1) as running:
        async with client_of(*running) as client:
            program = "while True: pass"
            calls = [asyncio.create_task(client.run(program, deadline=Deadline.after(60))) for _ in range(2)]
            await until(lambda: running[0].num_running() == 2)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: running[0].num_running() == 0)


@pytest.mark.slow
async def test_judges_get_work_in_proportion_to_what_they_can_do() -> None:
    with judges(0) as running:
        running += [Judge("--num-slots", str(num_slots), "--spare-slots", "0") for num_slots in (1, 4)]
        async with client_of(*running, batch_size=6) as client:
            await client.require_one(timeout_s=60)  # as a tool does at its start; now the client knows their slots
            program = "import time; time.sleep(0.2)"  # takes a slot and hardly a core, so that slots are what counts
            await asyncio.gather(*(client.run(program, deadline=Deadline.after(280)) for _ in range(120)))
        shares = [judge.num_judged() / 120 for judge in running]
        assert sum(shares) == 1.0
        assert 0.1 < shares[0] < 0.35, "of 5 slots it has 1"
