"""Sleeping programs do not delay those that compute, if the executor knows which ones sleep."""

import contextlib
import threading
import uuid
from pathlib import Path

import httpx
import pytest
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge

PATIENT = ["--max-wall-time-s", "600", "--max-queue-time-s", "600"]


def send_sleepers(judge: JudgeProcess, number: int) -> threading.Thread:
    """Send programs that sleep until the judge is ended, in a thread that lives until they are answered."""
    sleepers = [{"id": uuid.uuid4().hex, "code": "import time; time.sleep(600)"} for _ in range(number)]

    def send() -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{judge.url}/v1/submissions/batch", json={"submissions": sleepers}, timeout=600)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_programs_that_sleep_leave_their_slots_to_others(tmp_path: Path) -> None:
    with running_judge(
        tmp_path, "--num-slots", "2", "--spare-slots", "2", *WITHOUT_MODULES, *PATIENT, isolation="B"
    ) as judge:
        asleep = send_sleepers(judge, 2)
        judge.wait_until_running(2)
        verdicts = judge.judge_batch([{"id": uuid.uuid4().hex, "code": f"print({n})"} for n in range(20)])
        assert [verdict["stdout"] for verdict in verdicts] == [f"{n}\n" for n in range(20)]
        assert asleep.is_alive()


@pytest.mark.slow
def test_one_clients_sleepers_never_take_the_last_slot(tmp_path: Path) -> None:
    with running_judge(
        tmp_path, "--num-slots", "1", "--spare-slots", "2", *WITHOUT_MODULES, *PATIENT, isolation="B"
    ) as judge:
        asleep = send_sleepers(judge, 9)
        judge.wait_until_running(2)
        other = {"Judge-Client": "other"}
        reply = judge.http.post("/v1/submissions", json={"id": "honest", "code": "print(1)"}, headers=other)
        assert reply.json()["stdout"] == "1\n"
        judge.wait_until_running(2)
        assert asleep.is_alive()
