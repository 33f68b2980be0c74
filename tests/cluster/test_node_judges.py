"""Two Ray nodes, a judge on each: in a process of its own, since a process has one Ray only."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.two_nodes import NUM_PROGRAMS

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.ray]


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
        assert driver.stdout is not None
        yield driver, json.loads(next(line for line in driver.stdout if line.startswith("{")))
    finally:
        driver.kill()
        driver.communicate()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def num_judged(url: str, token: str) -> float:
    page = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=100).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("code_judge_verdicts_total"))


def test_there_is_a_judge_on_every_node_which_all_are_used_and_stop_with_the_run() -> None:
    with running() as (driver, saw):
        assert saw["outputs"] == [f"{number}\n" for number in range(NUM_PROGRAMS)]
        assert len({url.rpartition(":")[0] for url in saw["urls"]}) == 2
        assert all(num_judged(url, saw["token"]) > 0 for url in saw["urls"])
        assert [httpx.get(f"{url}/v1/health", timeout=100).status_code for url in saw["urls"]] == [401, 401]
        files = [file for file in Path(saw["folder"]).rglob("*") if file.is_file()]
        assert any("raylet" in file.name for file in files)
        assert [file for file in files if saw["token"].encode() in file.read_bytes()] == []
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.wait(200) == 0
        assert [is_up(url) for url in saw["urls"]] == [False, False]


def test_they_die_with_a_driver_that_is_killed() -> None:
    with running() as (driver, saw):
        assert [is_up(url) for url in saw["urls"]] == [True, True]
        driver.kill()
        give_up_at = time.monotonic() + 60
        while any(is_up(url) for url in saw["urls"]):
            assert time.monotonic() < give_up_at, "a judge outlived the run"
            time.sleep(0.2)
