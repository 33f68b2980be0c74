"""The server process: uvicorn with the application, from its announcement to its last reply."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from code_judge_server.api.limits.http_protocol import BoundedHttpProtocol
from code_judge_server.api.limits.open_connections import OpenConnections
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.sandbox.thread_priority import raise_thread_priority
from code_judge_server.settings import Settings

logger = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.02
_LAST_REPLIES_TIMEOUT_S = 1

_LEAST_CONNECTIONS = 64
_MOST_CONNECTIONS = 16_384
"""An idle connection takes 6 kB."""
_DESCRIPTORS_BESIDES = 128
"""Descriptors of the server itself, and of files that are open for a moment."""
_DESCRIPTORS_PER_WARM_SLOT = 4
"""Socket, pidfd, and two to read its resources; there is one warm slot for each slot and module set."""
_DESCRIPTORS_PER_JOB = 8
"""Sealed files, pipes and collected files; while a slot ends one job, the next may wait for it."""
_DESCRIPTORS_PER_SESSION = 20
"""Slot, socket, and those of a cell."""


class TooFewDescriptorsError(Exception):
    """This process may not open as many descriptors as the settings need."""


class JudgeServer(uvicorn.Server):
    """Uvicorn server that drains before it stops.

    The first SIGTERM or SIGINT makes it refuse submissions (503) and finish the accepted ones, for at most `drain_timeout_s`;
    then, or at a second signal, it answers the rest with `internal_error` and `queue_timeout` and stops. It listens all the
    while, so a load balancer sees `/v1/ready` fail.
    """

    def __init__(
        self, app: FastAPI, settings: Settings, *, most_connections: int, on_ready: Callable[[], None]
    ) -> None:
        class Protocol(BoundedHttpProtocol):
            open_connections = OpenConnections(most_connections, app.state.metrics)

        self._queue: SubmissionQueue = app.state.queue
        self._drain_timeout_s = settings.drain_timeout_s
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # a client names itself in `Judge-Client`
                timeout_keep_alive=75,  # longer than clients', so that the server does not close a connection in use
                timeout_graceful_shutdown=_LAST_REPLIES_TIMEOUT_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call `on_ready`; do neither if the server is stopped already."""
        self._loop = asyncio.get_running_loop()
        if self.should_exit:
            return
        raise_thread_priority()  # programs want every core, and all slots wait for this thread
        await super().startup(sockets)
        if self.started and not self.should_exit:
            gc.collect()
            gc.freeze()  # loaded modules stay for good: scanning them takes tens of milliseconds
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second; it is not raised again afterwards, so the exit code is 0."""
        if self.started and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_or_drain, signal.Signals(sig).name)
        else:
            self.should_exit = True

    def stop_at_once(self) -> None:
        """Stop without draining; may be called from any thread, and before the start."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop_or_drain(self, signal_name: str) -> None:
        if self._draining is None:
            num_left = self._queue.num_waiting + self._queue.num_running
            logger.info("server: %s received, finishing %d submissions", signal_name, num_left)
            self._draining = asyncio.ensure_future(self._drain())
        else:
            logger.info("server: %s received again, stopping at once", signal_name)
            self._stop()

    async def _drain(self) -> None:
        self._queue.start_draining()
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                while not self._is_done:  # noqa: ASYNC110 (it happens once: not worth an event)
                    await asyncio.sleep(_DRAIN_POLL_S)
        except TimeoutError:
            logger.warning("draining: not finished after %g s; cancelling the rest", self._drain_timeout_s)
        self._stop()

    @property
    def _is_done(self) -> bool:
        """Return whether every submission is judged and answered; probes take no time."""
        return self._queue.is_idle and not self.server_state.tasks

    def _stop(self) -> None:
        self._queue.start_draining()
        self._queue.cancel_all()
        self.should_exit = True


def most_connections(settings: Settings) -> int:
    """Raise the soft limit of open descriptors to the hard limit, and return the number left for connections, when programs and
    sessions use every slot.

    Raises:
        TooFewDescriptorsError: too few are left for connections.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    per_slot = _DESCRIPTORS_PER_WARM_SLOT * len(settings.preload_sets) + _DESCRIPTORS_PER_JOB
    needed = _DESCRIPTORS_BESIDES + per_slot * settings.total_slots + _DESCRIPTORS_PER_SESSION * settings.max_sessions
    if hard_limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    if hard_limit < needed + _LEAST_CONNECTIONS:
        raise TooFewDescriptorsError(
            f"open files: the hard limit of this process (RLIMIT_NOFILE, `ulimit -Hn`) is {hard_limit}; {settings.total_slots} "
            f"slots with {len(settings.preload_sets)} sets of modules and {settings.max_sessions} sessions need {needed}, "
            f"and connections {_LEAST_CONNECTIONS} at least. Raise it to {needed + _LEAST_CONNECTIONS} or more, or lower "
            "num_slots, spare_slots or max_sessions"
        )
    return min(hard_limit - needed, _MOST_CONNECTIONS)
