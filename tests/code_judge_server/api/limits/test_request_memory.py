"""Bodies of all requests together are bounded: natively by a 429, for code-judge's clients by waiting."""

import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from judge_process import Gate, running_judge

PADDING = "#" * 700_000


def large(code: str) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "code": f"{code} {PADDING}"}


@pytest.mark.slow
def test_a_body_that_finds_no_room_is_refused_or_waits(tmp_path: Path) -> None:
    arguments = (
        "--num-slots",
        "4",
        "--request-memory-mb",
        "1",
        "--max-body-bytes",
        "1000000",
        "--max-wall-time-s",
        "100",
    )
    gate = Gate(tmp_path)
    with running_judge(tmp_path, *arguments) as judge, ThreadPoolExecutor() as pool:
        first = pool.submit(judge.http.post, "/v1/submissions", json=large(gate.code()))
        judge.wait_until_running()
        refused = judge.http.post("/v1/submissions", json=large("pass"))
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "request_memory_mb" in refused.json()["detail"]
        chunks = [b'{"id": "chunked", "code": "', *[b"#" * 70_000] * 10, b'"}']
        chunked = judge.http.post("/v1/submissions", content=iter(chunks), headers={"Content-Type": "application/json"})
        assert chunked.status_code == 429
        assert judge.judge(code="print(1)")["stdout"] == "1\n"
        waiting = pool.submit(judge.http.post, "/run", json={"type": "python", "solution": f"print(1) {PADDING}"})
        assert not wait([waiting], timeout=0.5).done
        gate.open()
        assert waiting.result().json()["stdout"] == "1\n"
        assert first.result().json()["status"] == "accepted"
        assert judge.http.post("/v1/submissions", json=large("pass")).status_code == 200
