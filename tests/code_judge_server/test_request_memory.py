"""Bodies of all requests together are bounded: natively by a 429, for code-judge's clients by waiting."""

import threading
import time
import uuid
from pathlib import Path
from typing import Any

from judge_process import running_judge

PADDING = "#" * 700_000


def slow(seconds: float) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "code": f"import time; time.sleep({seconds}) {PADDING}"}


def test_a_body_that_finds_no_room_is_refused_or_waits(tmp_path: Path) -> None:
    arguments = ("--num-slots", "4", "--request-memory-mb", "1", "--max-body-bytes", "1000000")
    with running_judge(tmp_path, *arguments) as judge:
        first = threading.Thread(target=judge.http.post, args=("/v1/submissions",), kwargs={"json": slow(2)})
        first.start()
        judge.wait_until_running()
        refused = judge.http.post("/v1/submissions", json=slow(0))
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "request_memory_mb" in refused.json()["detail"]
        chunks = [b'{"id": "chunked", "code": "', *[b"#" * 70_000] * 10, b'"}']
        chunked = judge.http.post("/v1/submissions", content=iter(chunks), headers={"Content-Type": "application/json"})
        assert chunked.status_code == 429
        assert judge.judge(code="print(1)")["stdout"] == "1\n"
        started_at = time.monotonic()
        waited = judge.http.post("/run", json={"type": "python", "solution": f"print(1) {PADDING}"})
        assert waited.json()["stdout"] == "1\n"
        assert time.monotonic() - started_at > 0.5
        first.join()
        assert judge.http.post("/v1/submissions", json=slow(0)).status_code == 200
