"""The log at its default level has one line for each judged request, and one for the start."""

import json
from pathlib import Path
from typing import Any

from judge_process import running_judge

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


def test_every_request_that_was_judged_is_one_line_and_so_is_the_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "work"
    folder.mkdir()
    with running_judge(folder, "--log-format", "json", stderr_to=log) as judge:
        for path, body in REQUESTS.items():
            assert judge.http.post(path, json=body).status_code == 200, path
        assert judge.http.post("/run", json={}).status_code == 400
        upgrade = {"Connection": "upgrade", "Upgrade": "websocket"}
        assert judge.http.get("/ping", headers=upgrade).json() == "pong"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["num_slots"] > 0 for line in lines if line["message"].startswith("started: ")] == [True]
    assert [line["message"] for line in lines if line["logger"].startswith("uvicorn")] == []
    requests = [line for line in lines if line["message"].startswith("/")]
    assert [line["message"].partition(":")[0] for line in requests] == list(REQUESTS)
    assert all(line["level"] == "info" and line["client"] == "127.0.0.1" and line["time_s"] > 0 for line in requests)
