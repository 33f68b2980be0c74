"""Searches and clusters of failures over the recorded texts, and the command itself."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi.testclient import TestClient

from agentrl.dashboard.app import Dashboard
from agentrl.dashboard.runs import open_runs
from agentrl.dashboard.scans import Scans
from agentrl.types import Failure, FailureClass, Termination
from tests.dashboard.run_folder import FAILED, TURN, trajectory, write_run, write_trajectories

NEVER_ENDS = "(a+)+$"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


async def lines_of(run_dir: Path, kind: str, pattern: str = "") -> list[dict[str, Any]]:
    return [json.loads(line) async for line in Scans().lines(run_dir, kind, pattern)]


def scans() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if is_scan(child)]


def is_scan(process: psutil.Process) -> bool:
    try:
        return "agentrl.dashboard.scan" in process.cmdline()
    except psutil.Error:  # it has ended; other tests of this process may leave zombies
        return False


async def test_a_search_finds_every_kind_of_text_the_newest_step_first(run_dir: Path):
    lost = Failure(failure_class=FailureClass.ENGINE, message="needle in a failure")
    turn = replace(TURN, calls=(replace(TURN.calls[0], arguments={"code": "x = 1\nneedle"}),))
    write_trajectories(run_dir, 8, [trajectory(8, 0, 0, failures=(lost,)), trajectory(8, 0, 1, turns=(turn,))])
    write_trajectories(run_dir, 9, [trajectory(9, 0, 0, turns=(replace(TURN, text="a needle, and a needle"),))])
    *hits, end = [line for line in await lines_of(run_dir, "search", "need.e") if "match" in line or "done" in line]
    assert [(hit["file"], hit["part"]) for hit in hits] == [
        ("step_000009", "turn 1"),
        ("step_000008", "failure"),
        ("step_000008", "call 1"),
    ]
    assert (hits[2]["before"], hits[2]["match"], hits[2]["after"]) == ("x = 1\n", "needle", "")
    assert (end["done"], end["is_full"]) == (True, False)


async def test_a_search_finds_prompts(run_dir: Path):
    hits = [line for line in await lines_of(run_dir, "search", r"What is 1 \+") if "match" in line]
    assert [(hit["file"], hit["prompt_id"], hit["offset"]) for hit in hits] == [
        ("step_000002", "p1", None),
        ("step_000001", "p1", None),
    ]


async def test_a_pattern_that_is_none_is_answered_with_the_reason(run_dir: Path):
    assert await lines_of(run_dir, "search", "(open") == [
        {"error": "pattern: missing ), unterminated subpattern at position 0"}
    ]


async def test_a_pattern_that_would_take_for_ever_is_stopped(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentrl.dashboard.scans.MAX_S", 1.0)
    write_trajectories(run_dir, 9, [trajectory(9, 0, 0, turns=(replace(TURN, text="a" * 60 + "b"),))])
    assert (await lines_of(run_dir, "search", NEVER_ENDS))[-1] == {"done": True, "timed_out_s": 1.0}
    assert scans() == []


async def test_a_search_ends_when_its_reader_leaves(run_dir: Path):
    write_trajectories(run_dir, 9, [trajectory(9, 0, 0, turns=(replace(TURN, text="a" * 60 + "b"),))])
    lines = Scans().lines(run_dir, "search", f"compute|{NEVER_ENDS}")
    search = anext(lines)  # nothing comes
    task = asyncio.ensure_future(search)
    while not scans():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await lines.aclose()
    assert scans() == []


async def test_a_search_whose_reader_leaves_at_once_ends_too(run_dir: Path):
    for pause_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        lines = Scans().lines(run_dir, "search", "compute")
        task = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(pause_s)
        task.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(task, return_exceptions=True)
            await lines.aclose()
    assert scans() == []


async def test_a_damaged_file_ends_a_search_with_its_reason(run_dir: Path):
    (run_dir / "trajectories" / "step_000009.atr").write_bytes(b"no trajectories")
    assert "not a trajectory file" in (await lines_of(run_dir, "search", "x"))[-1]["error"]


async def test_failed_calls_are_clustered_by_their_last_line(run_dir: Path):
    other = replace(FAILED, text="line 3\nValueError: 17 is odd")
    turns = [
        (replace(TURN, results=(replace(other, text=other.text.replace("17", str(number))),)),) for number in (5, 7)
    ]
    write_trajectories(run_dir, 9, [trajectory(9, 0, sample, turns=turn) for sample, turn in enumerate(turns)])
    *_, last, end = await lines_of(run_dir, "failed_calls")
    assert [(item["tool"], item["status"], item["cause"], item["count"]) for item in last["clusters"]] == [
        ("python", "error", "Traceback: no", 4),
        ("python", "error", "ValueError: 5 is odd", 2),
    ]
    assert last["clusters"][0]["steps"] == {"step_000001": 2, "step_000002": 2}
    assert end["done"]


def test_failed_attempts_are_clustered_by_class_and_cause(run_dir: Path):
    def failed(sample: int, cause: str, **fields: Any):
        failure = Failure(failure_class=FailureClass.REWARD_DATA, message=f"sample {sample}: {cause}", cause=cause)
        return trajectory(9, 0, sample, failures=(failure,), **fields)

    lost: dict[str, Any] = {"reward": None, "termination": Termination.DATA_ERROR}
    samples = [failed(0, "KeyError at r.py:3", **lost), failed(1, "KeyError at r.py:3"), failed(2, "OSError at r.py:9")]
    write_trajectories(run_dir, 9, samples)
    with TestClient(Dashboard(open_runs([run_dir])).build(token=None), base_url="http://localhost") as client:
        first, second = client.get("/api/runs/run/failures").json()["clusters"]
    assert (first["failure_cause"], first["count"], first["num_lost"]) == ("KeyError at r.py:3", 2, 1)
    assert (second["failure_cause"], second["steps"]) == ("OSError at r.py:9", [[9, 1]])


@pytest.mark.slow
def test_the_command_ends_on_a_signal_while_a_page_is_open(run_dir: Path):
    command = [sys.executable, "-m", "agentrl.dashboard", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        address = process.stdout.readline().removeprefix("dashboard: ").strip()
        with urllib.request.urlopen(f"{address}api/events") as events:
            assert b'"key":"run"' in events.readline()
            process.send_signal(signal.SIGTERM)
            events.read()
        assert process.stderr.read() == ""


def test_a_folder_without_a_run_ends_the_command_with_one_line(tmp_path: Path):
    command = [sys.executable, "-m", "agentrl.dashboard", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {tmp_path}: holds no run")
    assert len(ended.stderr.splitlines()) == 1
