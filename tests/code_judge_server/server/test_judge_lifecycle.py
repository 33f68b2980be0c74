"""The server's start, refusal to start, stop and death, and its guards."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import httpx
import pytest
from judge_process import COMMAND, Gate, JudgeProcess, pids_with, running_judge, wait_until

from code_judge_server.jail.probe.canaries import find_tier

_SYMPY_S = 0.3
"""Import time of sympy on the machine for which three seconds are required."""
SLEEPER = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', {marker!r}])"


def start_and_fail(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to exit by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | (environment or {}),
        timeout=100,
        check=False,
    )


def run_sleepers(judge: JudgeProcess, marker: str) -> None:
    """Fill both slots with programs that have sleeping children; their request is left hanging."""
    submissions = [{"id": str(i), "language": "python", "code": SLEEPER.format(marker=marker)} for i in range(2)]

    def send() -> None:
        with contextlib.suppress(httpx.TransportError):  # the server is meant to die under it
            httpx.post(f"{judge.url}/v1/submissions/batch", json={"submissions": submissions}, timeout=100)

    threading.Thread(target=send, daemon=True).start()
    wait_until(lambda: len(pids_with(marker)) == 2)


def assert_nothing_is_left(folder: Path, marker: str) -> None:
    wait_until(lambda: not pids_with(marker) and not pids_with(str(folder)))
    wait_until(lambda: not list(folder.iterdir()))


def test_isolation_is_demanded_unless_its_absence_is_named() -> None:
    refused = start_and_fail("--port", "0", "--use-isolation", "D")
    assert refused.returncode == 2
    assert "--require-isolation D" in refused.stderr
    assert refused.stdout == ""


def test_no_isolation_is_for_loopback_only() -> None:
    refused = start_and_fail(
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--require-isolation",
        "D",
        "--use-isolation",
        "D",
        environment={"CODE_JUDGE_TOKEN": "t"},
    )
    assert refused.returncode == 2
    assert "loopback only" in refused.stderr


def test_other_addresses_than_loopback_need_a_token() -> None:
    refused = start_and_fail("--port", "0", "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "CODE_JUDGE_TOKEN" in refused.stderr


def test_a_taken_port_is_refused_in_one_line(judge: JudgeProcess) -> None:
    refused = start_and_fail("--port", judge.url.rpartition(":")[2], "--require-isolation", "D")
    assert refused.returncode == 2
    assert refused.stderr.startswith("code judge: port: cannot listen on 127.0.0.1:")
    assert refused.stderr.count("\n") == 1


def test_a_wrong_setting_is_refused_by_name() -> None:
    assert "max_memory_mb" in start_and_fail(environment={"CODE_JUDGE_MAX_MEMORY_MB": "many"}).stderr
    assert start_and_fail("--max-memory", "1").stderr == (
        "code judge: unrecognized arguments: --max-memory 1. --help names every setting\n"
    )
    assert start_and_fail("--host", "0.0.0.0").stderr.startswith("code judge: host: `0.0.0.0`")


def test_help_names_every_setting_with_its_meaning() -> None:
    text = start_and_fail("--help").stdout
    assert "--max-tasks" in text
    assert "Processes and threads of one program." in text


def seconds_until_ready(folder: Path, *, isolation: str) -> float:
    """Return the time from the start of a process, with the usual slots and sets, to the first 200 of `/v1/ready`."""
    started_at = time.monotonic()
    with running_judge(folder, isolation=isolation) as judge:
        assert judge.http.get("/v1/ready").status_code == 200
        return time.monotonic() - started_at


def slowness() -> float:
    """Return how much slower than usual this machine is now, measured by the import of sympy, the largest part of a start."""
    started_at = time.monotonic()
    subprocess.run([sys.executable, "-c", "import sympy"], check=True)
    return max(1.0, (time.monotonic() - started_at) / _SYMPY_S)


@pytest.mark.alone
@pytest.mark.parametrize("tier", ["best", "D"])
def test_it_is_ready_within_three_seconds(tmp_path: Path, tier: str) -> None:
    isolation = find_tier().tier if tier == "best" else tier
    tries: list[tuple[float, float]] = []
    while not tries or (
        tries[-1][0] >= 3 * tries[-1][1] and len(tries) < 3
    ):  # other load of this machine is not its fault
        tries.append((seconds_until_ready(tmp_path, isolation=isolation), slowness()))
    assert tries[-1][0] < 3 * tries[-1][1], tries


@pytest.mark.slow
def test_code_judges_environment_names_are_honoured(tmp_path: Path) -> None:
    environment = {
        "MAX_EXECUTION_TIME": "3",
        "MAX_MEMORY": "128",
        "MAX_WORKERS": "3",
        "MAX_STDOUT_ERROR_LENGTH": "5",
        "MAX_QUEUE_WORK_LIFE_TIME": "1.5",
    }
    with running_judge(tmp_path, environment=environment) as judge:
        health = judge.http.get("/v1/health").json()
        assert health["num_slots"] == 3
        assert (health["max_limits"]["cpu_time_s"], health["max_limits"]["wall_time_s"]) == (3, 3)
        assert health["max_limits"]["memory_bytes"] == 128 * 1024 * 1024
        assert judge.judge(code="print('x' * 10)")["stdout"] == "xxxxx"
        sleeper = {"type": "python", "solution": "import time; time.sleep(2)"}
        results = judge.http.post("/run/batch", json={"submissions": [sleeper] * 4}).json()["results"]
        assert [result["reason"] for result in results] == ["", "", "", "queue_timeout"]
        assert results[3]["stdout"] is None
        patient = judge.http.post("/run/long-batch", json={"submissions": [sleeper] * 4}).json()["results"]
        assert [result["reason"] for result in patient] == [""] * 4


def test_a_full_queue_is_a_429_with_a_time_to_retry(tmp_path: Path) -> None:
    small = ["--num-slots", "1", "--queue-capacity", "3", "--max-batch-items", "3", "--max-wall-time-s", "100"]
    with running_judge(tmp_path, *small) as judge:
        gate = Gate(tmp_path)
        sleepers = [{"id": str(i), "language": "python", "code": gate.code()} for i in range(3)]
        first = threading.Thread(target=judge.judge_batch, args=(sleepers,))
        first.start()
        judge.wait_until_running()
        others = [{**sleeper, "id": f"other-{sleeper['id']}"} for sleeper in sleepers]
        refused = judge.http.post("/v1/submissions/batch", json={"submissions": others})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        gate.open()
        patient = [{"type": "python", "solution": "print(1)"}] * 3
        answered = judge.http.post("/run/long-batch", json={"submissions": patient}).json()["results"]
        assert [result["stdout"] for result in answered] == ["1\n"] * 3
        first.join()


def test_requests_without_the_token_are_a_401_and_one_line_of_the_log(tmp_path: Path) -> None:
    headers, log, work = {"Authorization": "Bearer right"}, tmp_path / "log", tmp_path / "work"
    work.mkdir()
    with running_judge(work, environment={"CODE_JUDGE_TOKEN": "right"}, headers=headers, stderr_to=log) as judge:
        assert judge.judge(code="print(1)")["stdout"] == "1\n"
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}):
            for path in ("/run", "/v1/submissions/batch"):
                assert httpx.post(judge.url + path, json={}, headers=wrong, timeout=100).status_code == 401
            assert httpx.get(judge.url + "/v1/health", headers=wrong, timeout=100).status_code == 401
        program = judge.judge(code="import os; print(open(f'/proc/{os.getppid()}/environ').read())")
        assert "right" not in program["stdout"]
        assert log.read_text().count("authorization: token missing, refused requests: 1, last from 127.0.0.1") == 1
        assert log.read_text().count("authorization:") == 1


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_body_that_is_too_large_is_a_413(tmp_path: Path, announced: bool) -> None:
    with running_judge(tmp_path, "--max-body-bytes", "10000") as judge:
        body = b'{"type": "python", "solution": "' + b"#" * 20000 + b'"}'
        content = body if announced else (body[start : start + 1000] for start in range(0, len(body), 1000))
        reply = judge.http.post("/run", content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code == 413
        assert "10000" in reply.json()["detail"]
        assert judge.judge(code="print(1)")["status"] == "accepted"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_leaves_nothing(tmp_path: Path, signal_number: int) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    with running_judge(tmp_path, "--num-slots", "2", "--drain-timeout-s", "0") as judge:
        run_sleepers(judge, marker)
        judge.process.send_signal(signal_number)
        judge.process.wait(timeout=60)
        assert_nothing_is_left(tmp_path, marker)


def test_an_idle_server_stops_with_a_signal_and_leaves_nothing(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "2") as judge:
        judge.process.send_signal(signal.SIGTERM)
        judge.process.wait(timeout=60)
        assert_nothing_is_left(tmp_path, str(tmp_path))


def test_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    with running_judge(tmp_path, "--num-slots", "2") as judge:
        run_sleepers(judge, marker)
        judge.process.kill()
        judge.process.wait()
        assert_nothing_is_left(tmp_path, marker)


def test_it_never_listens_if_its_stdin_has_ended_before() -> None:
    """Its parent has died while the judge was starting; nobody else would stop it."""
    command = [sys.executable, "-m", "code_judge_server", "--port", "0", "--require-isolation", "D", "--num-slots", "1"]
    ended = subprocess.run(
        [*command, "--exit-with-stdin"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "")


def test_it_ends_with_its_stdin_if_asked(tmp_path: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    with running_judge(tmp_path, "--num-slots", "2", "--exit-with-stdin") as judge:
        run_sleepers(judge, marker)
        assert judge.process.stdin is not None
        judge.process.stdin.close()
        judge.process.wait(timeout=60)
        assert_nothing_is_left(tmp_path, marker)
        judge.process.stdin = None
