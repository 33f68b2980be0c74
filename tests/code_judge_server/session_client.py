"""An open session, as a client sees it."""

from typing import Any

import httpx
from judge_process import JudgeProcess, wait_until


class Session:
    """A session of a judge; the owner must `close` it."""

    def __init__(self, judge: JudgeProcess, **request: Any) -> None:
        self.http = judge.http
        replies: list[httpx.Response] = []
        # Closing the session of the test before takes some milliseconds.
        wait_until(
            lambda: replies.append(self.http.post("/v1/sessions", json=request)) or replies[-1].status_code != 429
        )
        assert replies[-1].status_code == 200, replies[-1].text
        self.path = f"/v1/sessions/{replies[-1].json()['session_id']}"

    def cell(self, code: str, **options: Any) -> dict[str, Any]:
        """Run a cell, and return its result."""
        reply = self.try_cell(code, **options)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def try_cell(self, code: str, **options: Any) -> httpx.Response:
        """Run a cell, which may be refused."""
        return self.http.post(f"{self.path}/cells", json={"code": code, **options})

    def value(self, expression: str, **options: Any) -> str:
        """Run a cell, and return the value that it displays at its end."""
        result = self.cell(expression, **options)
        assert result["status"] == "accepted", result
        return result["display"][-1]["text/plain"]

    def close(self) -> None:
        """Close it."""
        self.http.delete(self.path)
