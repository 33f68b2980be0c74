"""Judges on one Ray node, and on two: these in a process of their own, since a process has one Ray only."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from agentrl.cluster.node_judges import node_judges
from agentrl.judge.client import JudgeClient
from agentrl.types import Deadline
from benchmarks.rollout.killed_run import Victim
from tests.cluster.two_nodes import NUM_PROGRAMS, SECTION
from tests.processes import still_running
from tests.runners.run_process import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
OUTPUTS = [f"{number}\n" for number in range(NUM_PROGRAMS)]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@contextlib.contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Give the driver and what it saw; it waits for the end of its stdin."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.two_nodes"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield driver, next_facts(driver)
    finally:
        driver.kill()
        driver.communicate()


def next_facts(driver: subprocess.Popen[str]) -> dict[str, Any]:
    assert driver.stdout is not None
    return json.loads(next(line for line in driver.stdout if line.startswith("{")))


def tell(driver: subprocess.Popen[str], line: str) -> None:
    assert driver.stdin is not None
    driver.stdin.write(line)
    driver.stdin.flush()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def num_judged(url: str, token: str) -> float:
    page = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=100).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("code_judge_verdicts_total"))


def workers(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes that hold a judge, of the Ray that the process `pid` has started; absent: that this one has."""
    return [process for process in psutil.Process(pid).children(recursive=True) if holds_judge(process)]


def next_worker(killed: psutil.Process) -> psutil.Process:
    """Return the process that Ray starts in place of the one that was killed, as soon as it is there."""
    while (processes := workers()) in ([], [killed]):
        time.sleep(0.01)
    [restarted] = processes
    return restarted


def holds_judge(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return bool(words) and Victim.NODE_JUDGE.is_in(words)


@pytest.mark.slow
async def test_a_judge_is_back_at_its_address_with_its_token_after_it_or_its_worker_is_killed(
    local_ray: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agentrl.cluster.node_judges")
    async with node_judges(SECTION) as judges:
        [url] = judges.urls
        client = JudgeClient([url], token=judges.token, concurrency=2, batch_size=8, batch_timeout_s=30.0)
        await client.start()
        for number in range(2):
            [worker] = workers()
            [server] = worker.children()
            worker.kill()
            await asyncio.to_thread(server.wait, 60)
            assert (await client.run(f"print({number})", deadline=Deadline.after(100))).stdout == f"{number}\n"
            await client.check(timeout_s=60)
        [worker] = workers()
        [server] = worker.children()
        server.kill()
        assert (await client.run("print(2)", deadline=Deadline.after(100))).stdout == "2\n", "its worker lives"
        await client.aclose()
        assert (await asyncio.to_thread(httpx.get, f"{url}/v1/health", timeout=100)).status_code == 401
        assert workers() == [worker]
        [server] = worker.children()
    assert not is_up(url)
    assert not still_running([worker, server])
    messages = [record.message for record in caplog.records if record.name == "agentrl.cluster.node_judges"]
    host = url.removeprefix("http://").rpartition(":")[0]
    assert f"judge on {host} 0: its process died; restarting at {url}, unless its node is gone" in messages


@pytest.mark.slow
async def test_a_run_that_ends_while_a_judge_is_started_again_leaves_none(local_ray: Path) -> None:
    async with node_judges(SECTION) as judges:
        [url] = judges.urls
        [worker] = workers()
        worker.kill()
        restarted = await asyncio.to_thread(next_worker, worker)
    assert not is_up(url)
    assert not still_running([restarted])


@pytest.mark.slow
def test_there_is_a_judge_on_every_node_which_all_are_used_and_stop_with_the_run() -> None:
    with running() as (driver, saw):
        assert saw["outputs"] == OUTPUTS
        assert len({url.rpartition(":")[0] for url in saw["urls"]}) == 2
        assert all(num_judged(url, saw["token"]) > 0 for url in saw["urls"])
        assert [httpx.get(f"{url}/v1/health", timeout=100).status_code for url in saw["urls"]] == [401, 401]
        files = [file for file in Path(saw["folder"]).rglob("*") if file.is_file()]
        assert any("raylet" in file.name for file in files)
        assert [file for file in files if saw["token"].encode() in file.read_bytes()] == []
        tell(driver, "\n")
        assert driver.wait(200) == 0
        assert [is_up(url) for url in saw["urls"]] == [False, False]


@pytest.mark.slow
def test_they_die_with_a_driver_that_is_killed() -> None:
    with running() as (driver, saw):
        assert [is_up(url) for url in saw["urls"]] == [True, True]
        driver.kill()
        give_up_at = time.monotonic() + 60
        while any(is_up(url) for url in saw["urls"]):
            assert time.monotonic() < give_up_at, "a judge outlived the run"
            time.sleep(0.2)


@pytest.mark.slow
def test_the_judge_of_a_node_that_is_lost_is_not_started_elsewhere_and_the_other_one_judges_all() -> None:
    with running() as (driver, saw):
        tell(driver, "lose\n")
        assert next_facts(driver)["outputs"] == OUTPUTS
        [kept, lost] = sorted(saw["urls"])
        assert wait_until(lambda: not is_up(lost)), "it outlived its node"
        tell(driver, "judge\n")
        assert next_facts(driver)["outputs"] == OUTPUTS
        assert (is_up(kept), is_up(lost)) == (True, False)
        assert len(workers(driver.pid)) == 1
        tell(driver, "\n")
        assert driver.wait(200) == 0
        assert not is_up(kept)
