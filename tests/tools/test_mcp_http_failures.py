"""Failures of an HTTP server with sessions, or of a gateway before it: they are the infrastructure's."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import RolloutError
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import ToolStatus
from tests.tools.test_mcp_tool import ask, started

SCHEMA = {"type": "object", "properties": {"status": {"type": "integer"}}, "required": ["status"]}
UNKNOWN = {"code": -32601, "message": "unknown method"}


class SessionHandler(BaseHTTPRequestHandler):
    """Speaks the protocol's version with sessions; its tool is answered with the HTTP status of its argument."""

    protocol_version = "HTTP/1.1"
    sessions: set[str]
    has_sessions: bool

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, session = message["method"], self.headers.get("mcp-session-id")
        if "id" not in message:
            self.reply(202)
        elif method == "initialize":
            session = f"session-{len(self.sessions)}"
            self.sessions.add(session)
            result = {"capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
            result["protocolVersion"] = message["params"]["protocolVersion"]
            self.reply(200, {"id": message["id"], "result": result}, session=session if self.has_sessions else None)
        elif method == "tools/list":
            self.reply(200, {"id": message["id"], "result": {"tools": [{"name": "get", "inputSchema": SCHEMA}]}})
        elif method == "tools/call" and (status := message["params"]["arguments"]["status"]) != 200:
            self.reply(status, {"id": None, "error": {"code": -32001, "message": "no"}})
        elif method == "tools/call":
            content = [{"type": "text", "text": f"{len(self.sessions)} sessions"}]
            self.reply(200, {"id": message["id"], "result": {"content": content}})
        else:
            self.reply(200, {"id": message["id"], "error": UNKNOWN})

    def do_GET(self) -> None:
        self.reply(405)

    do_DELETE = do_GET

    def reply(self, status: int, message: dict[str, Any] | None = None, *, session: str | None = None) -> None:
        body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if session is not None:
            self.send_header("mcp-session-id", session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(folder: Path, *, has_sessions: bool) -> Iterator[Path]:
    """Serve from a thread, and yield a tool YAML."""
    handler = type("Handler", (SessionHandler,), {"sessions": set(), "has_sessions": has_sessions})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever).start()
        file = folder / "tools.yaml"
        file.write_text(f"tools: [{{type: mcp, url: 'http://127.0.0.1:{http.server_port}/mcp'}}]")
        try:
            yield file
        finally:
            http.shutdown()


async def test_a_failure_of_a_server_or_gateway_blames_no_call_and_opens_a_new_session(tmp_path: Path) -> None:
    with serving(tmp_path, has_sessions=True) as file:
        async with started(with_server_tools(load_tool_file(file))) as executor:
            opened = int((await ask(executor, "get", status=200)).text.split()[0])
            for status in (400, 401, 403, 404, 408, 429, 500, 503):
                with pytest.raises(RolloutError, match=f"lost during a call of `get`: HTTP status {status}"):
                    await ask(executor, "get", status=status)
                opened += 1
                assert (await ask(executor, "get", status=200)).text == f"{opened} sessions"


async def test_a_refusal_of_a_call_is_read_by_the_policy(tmp_path: Path) -> None:
    with serving(tmp_path, has_sessions=False) as file:
        async with started(with_server_tools(load_tool_file(file))) as executor:
            for status in (400, 404, 413):
                result = await ask(executor, "get", status=status)
                assert (result.status, result.text) == (ToolStatus.ERROR, "failure: no")
