"""The log at its default level: judged requests, start, end, and refused tokens, one line each."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from judge_process import running_judge

from code_judge_server.api.http_guards import RequireToken

PROGRAM = {"type": "python", "solution": "print(1)"}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/submissions": {"id": "a", "code": "print(1)"},
    "/v1/submissions/batch": {"submissions": [{"id": "b", "code": "print(1)"}]},
    "/v1/submissions/stream": {"submissions": [{"id": "c", "code": "print(1)"}]},
    "/run": PROGRAM,
    "/judge": PROGRAM,
    "/run/batch": {"submissions": [PROGRAM]},
    "/judge/batch": {"submissions": [PROGRAM]},
    "/run/long-batch": {"submissions": [PROGRAM]},
    "/judge/long-batch": {"submissions": [PROGRAM]},
    "/run_code": {"code": "print(1)", "language": "python"},
    "/run_jupyter": {"cells": ["print(1)"]},
}


def test_every_request_that_was_judged_is_one_line_and_so_are_start_and_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "work"
    folder.mkdir()
    with running_judge(folder, "--log-format", "json", stderr_to=log) as judge:
        for path, body in REQUESTS.items():
            assert judge.http.post(path, json=body).status_code == 200, path
        assert judge.http.post("/run", json={}).status_code == 400
        upgrade = {"Connection": "upgrade", "Upgrade": "websocket"}
        assert judge.http.get("/ping", headers=upgrade).json() == "pong"
        judge.process.send_signal(signal.SIGTERM)
        judge.process.wait(timeout=60)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["num_slots"] > 0 for line in lines if line["message"].startswith("started: ")] == [True]
    assert lines[-1]["message"] == "server: SIGTERM received, finishing 0 submissions"
    assert [line["message"] for line in lines if line["logger"].startswith("uvicorn")] == []
    requests = [line for line in lines if line["message"].startswith("/")]
    assert [line["message"].partition(":")[0] for line in requests] == list(REQUESTS)
    assert all(line["level"] == "info" and line["client"] == "127.0.0.1" and line["time_s"] > 0 for line in requests)


async def test_refused_tokens_are_counted_between_two_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    app = RequireToken(FastAPI(), token="right")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://judge") as client:
        for _ in range(4):
            assert (await client.get("/v1/health")).status_code == 401
        now += 61
        assert (await client.get("/v1/health")).status_code == 401
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"authorization: token missing, refused requests: {number}, last from 127.0.0.1" for number in (1, 4)
    ]
