"""An MCP server for tests: `python mcp_server.py`, or with a port for HTTP.

Its environment says how it differs: `CHANGED` names a file whose existence changes the parameters of `add`; with `STUBBORN` it
ignores SIGTERM and the end of its input; over HTTP it asks for the bearer token `TOKEN`.
"""

import asyncio
import base64
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp_types import ImageContent, TextContent, ToolAnnotations

server = MCPServer("tests")
notes: list[str] = []


def changed() -> bool:
    return Path(os.environ.get("CHANGED", "/nowhere")).exists()


async def add(a: int, b: int, after_s: float = 0.0) -> int:
    """Add two numbers."""
    await asyncio.sleep(after_s)
    return a + b


async def join(a: str, b: str) -> str:
    """Add two texts."""
    return a + b


server.add_tool(join if changed() else add, name="add", annotations=ToolAnnotations(read_only_hint=True))


@server.tool()
async def wait(seconds: float, file: str) -> str:
    """Wait, and write into a file if the call is cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        Path(file).write_text("cancelled")  # noqa: ASYNC240
        raise
    return "waited"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such row")


@server.tool()
async def kill(how: str) -> str:
    """End the server by `exit`, or `stop` it."""
    print("goodbye", file=sys.stderr, flush=True)
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSTOP)
    return "never"


@server.tool()
async def block(seconds: float) -> str:
    """Answer nothing for some seconds."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "blocked"


@server.tool()
def many(characters: int) -> str:
    """Return a long text."""
    return "x" * characters


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """Return a picture."""
    data = base64.b64encode(b"png!" * 3).decode()
    return [TextContent(type="text", text="a cat"), ImageContent(type="image", data=data, mime_type="image/png")]


@server.tool()
def note(text: str) -> str:
    """Keep a text, and return all that were kept."""
    notes.append(text)
    return ", ".join(notes)


@server.tool()
def fork() -> str:
    """Start a process that leaves the server's group."""
    return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)


def guarded(app: Any) -> Any:
    async def checked(scope: Any, receive: Any, send: Any) -> None:
        wanted = f"Bearer {os.environ['TOKEN']}".encode()
        if scope["type"] == "http" and (b"authorization", wanted) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
        else:
            await app(scope, receive, send)

    return checked


if __name__ == "__main__":
    if "STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if len(sys.argv) > 1:
        uvicorn.run(guarded(server.streamable_http_app()), port=int(sys.argv[1]), log_level="warning")
    else:
        server.run("stdio")
        if "STUBBORN" in os.environ:
            time.sleep(600)
