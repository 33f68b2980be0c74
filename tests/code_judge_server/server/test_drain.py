"""Draining, from the first signal to the last reply."""

import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx
from judge_process import Gate, JudgeProcess, running_judge, wait_until


class Request:
    """A batch that is sent in the background."""

    def __init__(self, judge: JudgeProcess, *codes: str) -> None:
        submissions = [{"id": uuid.uuid4().hex, "code": code} for code in codes]
        self.reply: httpx.Response | None = None

        def send() -> None:
            self.reply = httpx.post(judge.url + "/v1/submissions/batch", json={"submissions": submissions}, timeout=100)

        self._thread = threading.Thread(target=send)
        self._thread.start()

    def verdicts(self) -> list[dict[str, Any]]:
        self._thread.join()
        assert self.reply is not None
        assert self.reply.status_code == 200, self.reply.text
        return self.reply.json()["verdicts"]


SLEEPER = "import time; time.sleep(600)"
PATIENT = ["--drain-timeout-s", "600", "--max-wall-time-s", "600"]
"""Settings of a judge that waits longer for its programs than any test does."""


def test_draining_finishes_accepted_submissions_and_refuses_new_ones(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", *PATIENT) as judge:
        gate = Gate(tmp_path)
        request = Request(judge, gate.code(then="print('done')"), "print('waited')")
        judge.wait_until_running()
        judge.process.send_signal(signal.SIGTERM)
        wait_until(lambda: judge.http.get("/v1/ready").status_code == 503)
        assert int(judge.http.get("/v1/ready").headers["Retry-After"]) >= 1
        assert judge.http.get("/v1/health").json()["status"] == "draining"
        refused = judge.http.post("/v1/submissions", json={"id": "late", "code": ""})
        assert (refused.status_code, refused.json()["detail"][:10]) == (503, "the server")
        assert int(refused.headers["Retry-After"]) >= 1
        assert judge.http.post("/run", json={"type": "python", "solution": ""}).status_code == 503
        gate.open()
        assert [verdict["stdout"] for verdict in request.verdicts()] == ["done\n", "waited\n"]
        assert judge.process.wait(timeout=60) == 0


def test_submissions_that_outlast_the_drain_are_cancelled_and_answered(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--drain-timeout-s", "0.5") as judge:
        request = Request(judge, SLEEPER, "print('waited')")
        judge.wait_until_running()
        judge.process.send_signal(signal.SIGTERM)
        assert [verdict["status"] for verdict in request.verdicts()] == ["cancelled", "queue_timeout"]
        assert judge.process.wait(timeout=60) == 0


def test_a_second_signal_stops_it_at_once(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", *PATIENT) as judge:
        request = Request(judge, SLEEPER)
        judge.wait_until_running()
        judge.process.send_signal(signal.SIGINT)
        wait_until(lambda: judge.http.get("/v1/ready").status_code == 503)
        judge.process.send_signal(signal.SIGINT)
        assert [verdict["status"] for verdict in request.verdicts()] == ["cancelled"]
        assert judge.process.wait(timeout=60) == 0


def test_an_idle_server_has_nothing_to_drain(tmp_path: Path) -> None:
    with running_judge(tmp_path, *PATIENT) as judge:
        assert judge.judge(code="print(1)")["stdout"] == "1\n"  # a connection that is kept alive is no reason to wait
        judge.process.send_signal(signal.SIGTERM)
        assert judge.process.wait(timeout=60) == 0
