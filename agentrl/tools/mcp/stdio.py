"""MCP servers as child processes: lines of JSON over standard input and output, each server in a process group of its own.

The SDK's stdio client hides its process, and spares the children of a server that ends by itself. Here the whole group is
killed in every case, a line has a limit, and a server that reads nothing blocks no caller. `ServerGuard` kills them if this
process is killed.
"""

import asyncio
import contextlib
import logging
import math
import os
import re
import signal
import sys
import tempfile
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from agentrl.guardian import MARK, Guardian

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_EXIT_GRACE_S = 0.5
_KILL_LIMIT_S = 2.0
_POLL_S = 0.01
_SHOWN_CHARACTERS = 300
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_ID_WITHIN = 200

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class ServerGuard:
    """A process that kills the servers of this one after its death, with all that they started; and a folder for their logs."""

    def __init__(self) -> None:
        """Start the process."""
        self._mark = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-mcp-"))
        self._guardian = Guardian(mark=self._mark, temp_dir=self._folder)

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        """Return the variables of a server: few of this process, the marks, and its own."""
        inherited = get_default_environment()
        # `python` in a command is the interpreter of the worker, which has agentrl's packages.
        path = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        marks = {"AGENTRL_MCP_MARK": self._mark, **{key: os.environ[key] for key in (MARK,) if key in os.environ}}
        return inherited | {"PATH": path} | extra | marks

    def new_log(self) -> Path:
        """Return a file for the standard error of a server."""
        return self._folder / f"{uuid.uuid4().hex}.log"

    async def aclose(self) -> None:
        """Kill what is left of the servers, and end the process."""
        await asyncio.to_thread(self._guardian.dismiss)


def last_words(log: Path) -> str:
    """Return the last line that a server wrote to its standard error, for a message; empty if there is none."""
    with contextlib.suppress(OSError):
        lines = log.read_bytes()[-4096:].decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1][:_SHOWN_CHARACTERS]}" if written else ""
    return ""


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str], *, env: dict[str, str], folder: Path | None, log: Path, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Start a server, yield the streams of a client, and kill its process group; `on_end` is called when it says no more.

    Raises:
        OSError: it cannot be started.
    """
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    # Without a bound: a server that reads nothing must not block a caller past its time limit.
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](math.inf)
    tasks = [
        asyncio.create_task(_read(process, to_client, on_end)),
        asyncio.create_task(_write(process, from_client, on_end)),
    ]
    try:
        yield incoming, outgoing
    finally:
        await _end(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (to_client, incoming, outgoing, from_client):
            stream.close()


async def _read(
    process: Process, to_client: MemoryObjectSendStream[SessionMessage | Exception], on_end: Callable[[], None]
) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for line, size in _lines(process):
            if (message := _message(line, size)) is not None:
                await to_client.send(message)
    on_end()
    to_client.close()


async def _write(
    process: Process, from_client: MemoryObjectReceiveStream[SessionMessage], on_end: Callable[[], None]
) -> None:
    assert process.stdin is not None
    try:
        async for message in from_client:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode("utf-8", "replace") + b"\n")
            await process.stdin.drain()
    except OSError:  # it closed its standard input, so no call can reach it
        on_end()


async def _lines(process: Process) -> AsyncIterator[tuple[bytes, int]]:
    """Yield the lines of a server with their sizes; of a longer one than `MAX_ANSWER_BYTES` only the beginning."""
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join((*parts, line)), size + len(line)
            parts, size = [], 0
        size += len(rest)
        if size <= MAX_ANSWER_BYTES:
            parts.append(rest)


def _message(line: bytes, size: int) -> SessionMessage | None:
    """Return the message of a line; None for anything else, such as a `print` of the server."""
    if size > MAX_ANSWER_BYTES:
        if (found := _ID.search(line[:_ID_WITHIN])) is None:
            return None
        error = ErrorData(code=INTERNAL_ERROR, message=f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        logger.debug("MCP server: not a message: %r", line[:_SHOWN_CHARACTERS])
        return None


async def _end(process: Process) -> None:
    """Close a server's standard input, then kill its group, also after it has ended by itself."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_GRACE_S):
            # Not `wait`, which also waits until the children of an ended server have closed its pipes.
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILL_LIMIT_S):
            await process.wait()
