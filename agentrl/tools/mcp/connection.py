"""One client of one MCP server: its life in a task of its own, calls, and the causes of failures."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, ClientSession, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError

from agentrl.errors import RolloutError
from agentrl.tools.mcp.http import HTTP_FAILED, http_transport
from agentrl.tools.mcp.keys import McpServerConfig
from agentrl.tools.mcp.stdio import ServerGuard, last_words, stdio_transport
from agentrl.user_code import described

START_TIMEOUT_S = 60.0
"""Time limit for the start of a server; `uvx` and `npx` may fetch it first."""
_MAX_PAGES = 100
_CLOSE_LIMIT_S = 8.0


class ServerLostError(Exception):
    """The server ended or cannot be reached, before or while it answered."""


class CallTimeoutError(Exception):
    """A call has no answer in time; the server was asked to cancel it."""


class CallRefusedError(Exception):
    """The server answers with an error of the protocol; the message is its own."""


class McpConnection:
    """A client of a server; concurrent calls share it. `is_open` is False once the server is lost or given up."""

    def __init__(self, server: McpServerConfig, *, folder: Path, guard: ServerGuard | None) -> None:
        """Take the server's keys; `guard` is needed for a `command`."""
        self._server = server
        self._folder = folder if folder.is_dir() else None  # another machine may lack it
        self._guard = guard
        self._log = None if guard is None else guard.new_log()
        self._session: ClientSession | None = None
        self._num_in_flight = 0
        self._is_retired = False
        self.has_hung = False
        """True if it was given up because it gave no sign of life."""
        self._given_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """False once the server is lost or given up."""
        return self._session is not None and not self._is_retired and not self._given_up.is_set()

    async def open(self) -> list[Tool]:
        """Start or reach the server, and return its tools.

        Raises:
            RolloutError: it cannot be started or reached, or does not answer in `START_TIMEOUT_S`.
        """
        ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(ready))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._session = await ready
                return await self._list_tools()
        except TimeoutError as error:
            problem = f"no answer in {START_TIMEOUT_S:g} s{self._last_words()}"
            raise RolloutError(f"{self._server.label}: {problem}") from error
        except (MCPError, OSError, ValidationError, ValueError, httpx2.HTTPError, ServerLostError) as error:
            problem = error.message if isinstance(error, MCPError) else described(error)
            raise RolloutError(f"{self._server.label}: cannot be started: {problem}{self._last_words()}") from error

    async def call(self, tool: str, arguments: dict[str, Any], *, timeout_s: float) -> CallToolResult:
        """Call a tool.

        Raises:
            ServerLostError, CallTimeoutError, CallRefusedError: no result.
            RolloutError: the answer is not what the protocol says, such as a question back.
        """
        if (session := self._session) is None or not self.is_open:
            raise ServerLostError("it has ended")
        self._num_in_flight += 1
        try:
            return await self._call(session, tool, arguments, timeout_s)
        finally:
            self._num_in_flight -= 1
            if self._is_retired and self._num_in_flight == 0:
                self.give_up()

    async def answers(self, *, timeout_s: float) -> bool:
        """Return whether the server answers at all."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._list_tools()
        except (TimeoutError, MCPError, RuntimeError, ValidationError, ServerLostError):
            return False
        return True

    def give_up(self) -> None:
        """End the server, and with it the calls in flight; `aclose` waits for that."""
        self._given_up.set()

    async def wait_ended(self) -> None:
        """Wait for the end of a server that was lost or given up, and of the calls that others still have in flight."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """End the server, and wait until its processes and sockets are gone."""
        self.give_up()
        if self._task is not None:
            _, pending = await asyncio.wait([self._task], timeout=_CLOSE_LIMIT_S)
            for task in pending:
                task.cancel()

    async def _call(
        self, session: ClientSession, tool: str, arguments: dict[str, Any], timeout_s: float
    ) -> CallToolResult:
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(timeout_s):
                # Not `call_tool`, which checks results against the output schema and asks back for input.
                return await session.send_request(request, CallToolResult)
        except TimeoutError as error:
            raise CallTimeoutError from error
        except MCPError as error:
            if self._is_loss(error):
                self._is_retired = True  # calls in flight go on; others connect anew
                raise ServerLostError(f"{error.message}{self._last_words()}") from error
            raise CallRefusedError(error.message) from error
        except RuntimeError as error:  # the session has ended and does not say so by an `MCPError`
            raise ServerLostError(str(error)) from error
        except ValidationError as error:
            raise RolloutError(f"{self._server.label}: tool `{tool}`: its answer is no result of a call") from error

    def _is_loss(self, error: MCPError) -> bool:
        """Return whether the error is the client's own; a server on stdio may send `CONNECTION_CLOSED` as well."""
        is_remote = self._server.url is not None
        return error.code == HTTP_FAILED or (error.code == CONNECTION_CLOSED and (is_remote or not self.is_open))

    async def _serve(self, ready: asyncio.Future[ClientSession]) -> None:
        """Hold the client open; its cancel scopes must be entered and left by one task."""
        try:
            async with Client(self._transport(), cache=None) as client:
                if not ready.done():
                    ready.set_result(client.session)
                await self._given_up.wait()
        except BaseException as error:
            cause = _first_cause(error)
            if not ready.done():
                ready.set_exception(cause)
            if not isinstance(error, Exception):
                raise
        finally:
            self._given_up.set()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Any]:
        if self._server.url is not None:
            transport = http_transport(self._server.url, headers=self._server.headers)
        else:
            assert self._server.command is not None
            assert self._guard is not None
            assert self._log is not None
            transport = stdio_transport(
                self._server.command,
                env=self._guard.environment(self._server.env),
                folder=self._folder,
                log=self._log,
                on_end=self.give_up,
            )
        async with transport as streams:
            yield streams

    async def _list_tools(self) -> list[Tool]:
        if self._session is None:
            raise ServerLostError("it has ended")
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page: ListToolsResult = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools += page.tools
            if (cursor := page.next_cursor) is None:
                break
        return tools

    def _last_words(self) -> str:
        return "" if self._log is None else last_words(self._log)


def _first_cause(error: BaseException) -> BaseException:
    """Return the first plain exception of a group, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
