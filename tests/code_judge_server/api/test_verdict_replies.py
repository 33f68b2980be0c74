"""Verdicts over HTTP: single, in a batch, as a stream; and clients that disconnect."""

import http.client
import json
import uuid
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from judge_process import Gate, JudgeProcess, pids_with, wait_until

from code_judge_server.schemas import Verdict


def test_a_single_submission_is_answered_with_its_verdict(judge: JudgeProcess) -> None:
    reply = judge.http.post(
        "/v1/submissions", json={"id": uuid.uuid4().hex, "code": "print(5)", "expected_output": "5"}
    )
    verdict = Verdict.model_validate_json(reply.content)
    assert (verdict.status, verdict.stdout) == ("accepted", "5\n")


def test_a_wrong_field_of_a_single_submission_is_named(judge: JudgeProcess) -> None:
    for change, field in (({"colour": 1}, "colour"), ({"language": "cobol"}, "language"), ({"code": None}, "code")):
        reply = judge.http.post("/v1/submissions", json={"id": "s", "code": "", **change})
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)


def test_a_stream_sends_each_verdict_as_soon_as_it_is_ready(judge: JudgeProcess, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    slow, fast = ({"id": uuid.uuid4().hex, "code": code} for code in (gate.code(), "print(1)"))
    with judge.http.stream("POST", "/v1/submissions/stream", json={"submissions": [slow, fast]}) as reply:
        assert reply.headers["content-type"] == "application/x-ndjson"
        lines = reply.iter_lines()
        first = Verdict.model_validate_json(next(lines))
        gate.open()
        second, *rest = map(Verdict.model_validate_json, lines)
    assert ([first.id, second.id], rest) == ([fast["id"], slow["id"]], [])
    assert second.status == "accepted"


def test_a_stream_gives_every_verdict_once(judge: JudgeProcess) -> None:
    items = [{"id": uuid.uuid4().hex, "code": f"print({n})"} for n in range(100)]
    reply = judge.http.post("/v1/submissions/stream", json={"submissions": items})
    printed = {verdict["id"]: verdict["stdout"] for verdict in map(json.loads, reply.text.splitlines())}
    assert printed == {item["id"]: f"{n}\n" for n, item in enumerate(items)}
    assert len(reply.text.splitlines()) == 100


def test_a_large_batch_is_one_json_document(judge: JudgeProcess) -> None:
    items = [{"id": uuid.uuid4().hex, "code": f"print('{n % 10}' * 60_000)"} for n in range(20)]
    reply = judge.http.post("/v1/submissions/batch", json={"submissions": items})
    verdicts = reply.json()["verdicts"]
    assert [(verdict["id"], verdict["stdout"][0]) for verdict in verdicts] == [
        (item["id"], str(n % 10)) for n, item in enumerate(items)
    ]
    assert len(reply.content) > 1_000_000


@pytest.mark.parametrize("path", ["/v1/submissions", "/v1/submissions/batch", "/v1/submissions/stream", "/run"])
def test_submissions_of_a_disconnected_client_are_killed(judge: JudgeProcess, path: str) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 50; true', '{marker}'])"
    submission = {"id": marker, "code": code}
    native = submission if path == "/v1/submissions" else {"submissions": [submission]}
    body = {"type": "python", "solution": code} if path == "/run" else native

    with closing(http.client.HTTPConnection(urlsplit(judge.url).netloc)) as client:
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        wait_until(lambda: bool(pids_with(marker)))
    wait_until(lambda: not pids_with(marker), timeout_s=40)  # by itself it would end later
    judge.wait_until_running(0)


def test_the_same_submission_sent_again_is_not_run_again(judge: JudgeProcess, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.touch()
    trace.chmod(0o666)  # the programs of root's judge are ordinary users
    submission = {"id": uuid.uuid4().hex, "code": f"open({str(trace)!r}, 'a').write('x'); print(1)"}
    for _ in range(3):
        assert judge.http.post("/v1/submissions", json=submission).json()["stdout"] == "1\n"
    assert trace.read_text() == "x"  # tier D: programs reach the folder
    judge.http.post("/v1/submissions", json=submission, headers={"Judge-Client": "another"})
    assert trace.read_text() == "xx"


def test_limits_above_the_servers_are_lowered_and_reported(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="print(1)", limits={"cpu_time_s": 1e9, "memory_bytes": 10**300, "max_tasks": 10**9})
    maxima = judge.http.get("/v1/health").json()["max_limits"]
    assert verdict["status"] == "accepted"
    for name in ("cpu_time_s", "memory_bytes", "max_tasks"):
        assert verdict["limits"][name] == maxima[name]


@pytest.mark.parametrize(
    "path", ["/v1/submissions", "/v1/sessions", "/run", "/judge/long-batch", "/run_code", "/run_jupyter"]
)
def test_only_json_is_taken(judge: JudgeProcess, path: str) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = judge.http.post(path, content=b"{}", headers={"Content-Type": content_type})
        assert reply.status_code == 415
        assert reply.json()["detail"]
