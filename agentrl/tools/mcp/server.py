"""The servers behind the tools of one entry of the tool YAML, in one worker: shared by all trajectories, or one for each."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mcp_types import CallToolResult

from agentrl.errors import RolloutError
from agentrl.tools.base import Episode
from agentrl.tools.mcp.connection import CallTimeoutError, McpConnection, ServerLostError
from agentrl.tools.mcp.keys import McpServerConfig
from agentrl.tools.mcp.schemas import ToolParameters, check_unchanged
from agentrl.tools.mcp.stdio import ServerGuard
from agentrl.types import Deadline

logger = logging.getLogger(__name__)
T = TypeVar("T")

_WATCH_AFTER = 0.75
"""Share of the time limit after which a server must give a sign of life."""
_SIGN_OF_LIFE_SHARE = 0.2
"""Share of the time limit that it has for that, within these bounds in seconds:"""
_SIGN_OF_LIFE_S = (5.0, 10.0)
_TURN_S = 0.1
"""Time for which a repeated call has the second server for itself."""
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 10.0
_MAX_STARTS = 4
"""Servers that start at once: each takes a second of a core."""


class CallHungError(Exception):
    """A call had no answer in time, and neither had any other: its server was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCall:
    """A call of a server's tool."""

    tool: str
    arguments: dict[str, Any]
    is_idempotent: bool


class McpServers(ABC):
    """Opens connections to equal servers, and checks that their tools are those that the run was started with."""

    def __init__(self, server: McpServerConfig, folder: Path) -> None:
        """Take the keys of the server; `wanted` are the parameters of the tools in use, keyed by the server's names."""
        self.server = server
        self.wanted: dict[str, ToolParameters] = {}
        self._folder = folder
        self._guard: ServerGuard | None = None
        self._starting = asyncio.Lock()
        self._is_started = False
        self._time_limit_s = 0.0  # the longest of a call; trajectories near their deadline have less
        self._starts = asyncio.Semaphore(_MAX_STARTS)
        self._background: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Open the first connection, once for all tools.

        Raises:
            RolloutError: the server cannot be started.
            ToolChangedError: its tools have changed since the driver asked for them.
        """
        async with self._starting:
            if not self._is_started:
                if self.server.command is not None:
                    self._guard = await asyncio.to_thread(ServerGuard)
                await self._start()
                self._is_started = True

    @abstractmethod
    async def call(self, call: McpCall, episode: Episode, *, deadline: Deadline) -> CallToolResult:
        """Call a tool.

        Raises:
            RolloutError: the server cannot be reached, died or hung, and the call is not to blame.
            ToolChangedError: a restarted server has other tools.
            CallTimeoutError, CallHungError, CallRefusedError: the policy's call is to blame.
        """

    @abstractmethod
    async def end_episode(self, episode: Episode) -> None:
        """Free what belongs to a trajectory."""

    async def aclose(self) -> None:
        """End all servers."""
        await self._close()
        while self._background:
            await asyncio.wait(self._background)
        if self._guard is not None:
            guard, self._guard = self._guard, None
            await guard.aclose()

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...

    async def open(self) -> McpConnection:
        """Start a server, or reach a running one; raises as `start`."""
        async with self._starts:
            connection = McpConnection(self.server, folder=self._folder, guard=self._guard)
            try:
                check_unchanged(self.server, await connection.open(), self.wanted)
            except BaseException:
                await connection.aclose()
                raise
            return connection

    async def ask(self, connection: McpConnection, call: McpCall, deadline: Deadline) -> CallToolResult:
        """Make a call on a connection; a server that gives no sign of life late in the time limit is ended.

        Raises:
            ServerLostError: the server died, or was ended for an older call.
            CallTimeoutError, CallHungError, CallRefusedError: the policy's call is to blame.
        """
        remaining_s = deadline.remaining_s()
        self._time_limit_s = max(self._time_limit_s, remaining_s)
        watches: list[asyncio.Task[bool]] = []

        def watch() -> None:
            if connection.is_open:
                watches.append(self.in_background(self._ends_hung(connection)))

        # Of the time limit, not of this call's own time: so the first call to end its server is the oldest, which the server
        # works on, and a call with little time ends no server that is busy for others.
        timer = asyncio.get_running_loop().call_later(self._time_limit_s * _WATCH_AFTER, watch)
        is_answered = True
        try:
            return await connection.call(call.tool, call.arguments, timeout_s=remaining_s)
        except (CallTimeoutError, ServerLostError) as error:
            is_answered = False
            if watches and watches[0].done() and watches[0].result():
                raise CallHungError from error
            raise
        finally:
            if is_answered:
                timer.cancel()
                for task in watches:
                    task.cancel()

    async def _ends_hung(self, connection: McpConnection) -> bool:
        """Ask for a sign of life; end the server if there is none, and return whether this did so."""
        least_s, most_s = _SIGN_OF_LIFE_S
        limit_s = min(most_s, max(least_s, self._time_limit_s * _SIGN_OF_LIFE_SHARE))
        if await connection.answers(timeout_s=limit_s) or not connection.is_open:
            return False
        connection.has_hung = True
        self.discard(connection)
        return True

    def discard(self, connection: McpConnection) -> None:
        """End a server in the background."""
        connection.give_up()
        self.in_background(connection.aclose())

    def in_background(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine that `aclose` waits for; its callers may be cancelled."""
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s", error)


class _Lane:
    """One server after another: the next one starts at the first call after the last one was lost."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._opening: asyncio.Task[McpConnection] | None = None
        self._num_failures = 0

    async def connection(self) -> McpConnection:
        """Return an open connection; raises as `McpServers.start`."""
        if self._opening is not None and self._opening.done() and not _is_usable(self._opening):
            if (lost := _opened(self._opening)) is not None:
                logger.warning("%s: it was lost; starting it anew", self._servers.server.label)
                self._servers.in_background(lost.wait_ended())
            self._opening = None
        if self._opening is None:
            self._opening = self._servers.in_background(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> McpConnection:
        if self._num_failures:
            await asyncio.sleep(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**self._num_failures))
        self._num_failures += 1
        connection = await self._servers.open()
        self._num_failures = 0
        return connection

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            if (connection := _opened(self._opening)) is not None:
                await connection.aclose()


class SharedServer(McpServers):
    """One server for all trajectories of a worker.

    When it dies, the calls in flight whose tools are idempotent are repeated on a second server, one after another: so a call
    that kills servers kills no other call for a second time. A slow one shares the server with the next.
    """

    def __init__(self, server: McpServerConfig, folder: Path) -> None:
        super().__init__(server, folder)
        self._lane = _Lane(self)
        self._second_lane = _Lane(self)
        self._second_turn = asyncio.Lock()

    async def _start(self) -> None:
        await self._lane.connection()

    async def call(self, call: McpCall, episode: Episode, *, deadline: Deadline) -> CallToolResult:
        """See `McpServers.call`."""
        allowed_s = deadline.remaining_s()
        try:
            return await self.ask(await within(deadline, self._lane.connection(), self.server), call, deadline)
        except ServerLostError as error:
            if not call.is_idempotent:
                raise self._lost(call, error) from error
        try:
            return await self._repeat(call, deadline, least_s=allowed_s / 2)
        except ServerLostError as error:
            raise self._lost(call, error) from error

    async def _repeat(self, call: McpCall, deadline: Deadline, *, least_s: float) -> CallToolResult:
        """Repeat a call; with less than `least_s` for it, a time-out is no fault of the policy."""
        await within(deadline, self._second_turn.acquire(), self.server)
        try:
            connection = await within(deadline, self._second_lane.connection(), self.server)
            is_late = deadline.remaining_s() < least_s
            asking = asyncio.create_task(self.ask(connection, call, deadline))
            try:
                await asyncio.wait([asking], timeout=_TURN_S)
            except asyncio.CancelledError:
                asking.cancel()
                raise
        finally:
            self._second_turn.release()
        try:
            return await asking
        except (CallTimeoutError, CallHungError) as error:
            if is_late:
                raise self._lost(call, error) from error
            raise

    async def end_episode(self, episode: Episode) -> None:
        """Do nothing: no trajectory has a server of its own."""

    def _lost(self, call: McpCall, error: Exception) -> RolloutError:
        cause = str(error) or "no answer in time to the repeated call"
        return RolloutError(f"{self.server.label}: it was lost during a call of `{call.tool}`: {cause}")

    async def _close(self) -> None:
        await self._lane.aclose()
        await self._second_lane.aclose()


class ServerPerTrajectory(McpServers):
    """A server for each trajectory, from a pool of started ones; it ends with the trajectory."""

    def __init__(self, server: McpServerConfig, folder: Path) -> None:
        super().__init__(server, folder)
        self._pool: deque[asyncio.Task[McpConnection]] = deque()
        self._taken: dict[str, asyncio.Task[McpConnection]] = {}

    async def _start(self) -> None:
        first = self.in_background(self.open())
        await asyncio.shield(first)  # fails now if it must
        self._pool.append(first)
        self._fill_pool()

    async def call(self, call: McpCall, episode: Episode, *, deadline: Deadline) -> CallToolResult:
        """See `McpServers.call`; the state of a server that died is lost, so no call is repeated."""
        if episode.episode_id not in self._taken:
            self._taken[episode.episode_id] = self._take()
        taken = self._taken[episode.episode_id]
        connection = await within(deadline, asyncio.shield(taken), self.server)
        try:
            return await self.ask(connection, call, deadline)
        except (CallHungError, ServerLostError) as error:
            if connection.has_hung:  # by a call of this trajectory, be it another
                if self._taken.get(episode.episode_id) is taken:
                    del self._taken[episode.episode_id]
                raise CallHungError from error
            raise RolloutError(f"{self.server.label}: it was lost, with its state: {error}") from error

    async def end_episode(self, episode: Episode) -> None:
        """End the trajectory's server, in the background; other tools of the server may have done so."""
        if (taken := self._taken.pop(episode.episode_id, None)) is not None:
            self.in_background(_close_opened(taken))

    def _take(self) -> asyncio.Task[McpConnection]:
        while self._pool:
            opening = self._pool.popleft()
            if not opening.done() or _is_usable(opening):
                self._fill_pool()
                return opening
            self.in_background(_close_opened(opening))
        opening = self.in_background(self.open())
        self._fill_pool()
        return opening

    def _fill_pool(self) -> None:
        while len(self._pool) < self.server.pool:
            self._pool.append(self.in_background(self.open()))

    async def _close(self) -> None:
        openings = [*self._pool, *self._taken.values()]
        self._pool.clear()
        self._taken.clear()
        await asyncio.gather(*map(_close_opened, openings))


async def within(deadline: Deadline, coroutine: Any, server: McpServerConfig) -> Any:
    """Await a coroutine until the deadline.

    Raises:
        RolloutError: the time is over.
    """
    try:
        async with asyncio.timeout(deadline.remaining_s()):
            return await coroutine
    except TimeoutError as error:
        raise RolloutError(f"{server.label}: not ready in time for a call") from error


def _opened(opening: asyncio.Task[McpConnection]) -> McpConnection | None:
    has_failed = not opening.done() or opening.cancelled() or opening.exception() is not None
    return None if has_failed else opening.result()


def _is_usable(opening: asyncio.Task[McpConnection]) -> bool:
    connection = _opened(opening)
    return connection is not None and connection.is_open


async def _close_opened(opening: asyncio.Task[McpConnection]) -> None:
    """Cancel the start of a server, or end it."""
    opening.cancel()
    await asyncio.wait([opening])
    if (connection := _opened(opening)) is not None:
        await connection.aclose()
