"""One session: its snapshots, and its running cell."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from code_judge_server.jail_executor.messages import Ready
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.sandbox.executor import ExecutorError, JobLimits, Spent
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.sessions.idle_watch import IdleWatch
from code_judge_server.sessions.running_cell import CellEnd, RunningCell
from code_judge_server.sessions.schemas import CellRequest
from code_judge_server.sessions.session_job import CellEnded, SessionJob

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 10.0
"""Time for a session to end a cell that it was told to kill; after it the whole session is killed."""

_Reply = asyncio.Future[CellEnded | Ready]


class NoSnapshotError(Exception):
    """A snapshot of that number does not exist, or no longer does."""


class CellRefusedError(Exception):
    """The kernel would not pass a cell to its snapshot; the session is unchanged."""


class SessionDiedError(Exception):
    """The session's own processes ended, or do not answer; `ending` is the reason, if it was a limit of the running cell."""

    def __init__(self, message: str, *, ending: Ending = Ending.EXITED) -> None:
        super().__init__(message)
        self.ending = ending


class Session:
    """A namespace that cells change one after the other; see `SessionPhase` for its life."""

    def __init__(
        self, session_id: str, *, limits: JobLimits, max_snapshots: int, max_chars: int, max_collect_bytes: int = 0
    ) -> None:
        self.id = session_id
        self.limits = limits
        self.current = 0
        self.snapshots = [0]
        self.turn = asyncio.Lock()
        """Held by the caller that runs a cell, or waits to."""
        self._max_snapshots = max_snapshots
        self._max_chars = max_chars
        self._max_collect_bytes = max_collect_bytes
        self._num_cells = 0
        self._job: SessionJob | None = None
        self._slot: PrivateSlot | None = None
        self._idle: IdleWatch | None = None
        self._cell_runs = asyncio.Lock()
        """Held until nothing is left of a cell; later than `turn` if its caller was cancelled."""
        self._replies: dict[int, _Reply] = {}
        """Expected messages of the session, by the number of the cell; 0: the start of the session."""

    @property
    def alive(self) -> bool:
        """True if cells can run."""
        return self._job is not None and self._job.alive

    async def start(
        self, slot: PrivateSlot, *, python: str, memory_is_sampled: bool, on_death: Callable[["Session"], None]
    ) -> None:
        """Start its processes in a slot, which then belongs to the session; `on_death` is called once when nothing of it is
        left.

        Raises:
            ExecutorError: they do not start.
        """
        self._slot = slot
        self._idle = IdleWatch(slot, self.limits, end=self.close)
        ready = self._expect(0)

        def forget() -> None:
            if self._job is not None and self._job.ended_by:
                logger.warning("session %s: its processes have ended: %s", self.id, self._job.ended_by)
            self._answer(None)
            on_death(self)

        try:
            self._job = SessionJob(
                slot,
                python=python,
                limits=self.limits,
                memory_is_sampled=memory_is_sampled,
                on_message=self._answer,
                on_death=forget,
            )
            async with asyncio.timeout(_START_TIMEOUT_S):
                await ready
            if not self.alive:
                raise SessionDiedError(f"session `{self.id}`: it ended at once")
            self._idle.start()
        except (OSError, TimeoutError, SessionDiedError) as error:
            self.close()
            why = str(error) or f"no answer within {_START_TIMEOUT_S:g} s"
            raise ExecutorError(f"session: it does not start: {why}") from error

    async def run(self, cell: CellRequest, *, start: int, limits: JobLimits, spent: Spent | None = None) -> CellEnd:
        """Run one cell to its end, from the snapshot `start`; cancelling the call kills the cell, and still waits for its end.

        Raises:
            CellRefusedError: it could not be sent; the session is unchanged.
            NoSnapshotError: the snapshot `start` does not exist.
            SessionDiedError: the session has ended, before or by this cell.
        """
        async with self._cell_runs:
            if self._idle is not None:
                self._idle.stop()
            try:
                return await self._run(cell, start=start, limits=limits, spent=spent or Spent())
            finally:
                if self._idle is not None and self.alive:
                    self._idle.start()

    async def _run(self, request: CellRequest, *, start: int, limits: JobLimits, spent: Spent) -> CellEnd:
        if start not in self.snapshots:
            raise NoSnapshotError(f"snapshot: {start} is not among {self.snapshots} of session `{self.id}`")
        if self._job is None or self._slot is None or not self._job.alive:
            raise SessionDiedError(f"session `{self.id}`: it is closed")
        job = self._job
        collect_bytes = self._max_collect_bytes if request.collect else 0
        self._num_cells += 1
        reply = self._expect(self._num_cells)
        cell = RunningCell(
            self._slot,
            request,
            limits,
            collect_bytes=collect_bytes,
            max_chars=self._max_chars,
            has_ended=reply.done,
            kill=lambda: self._kill_cell(job, reply),
            spent=spent,
        )
        message = {
            "kind": "cell",
            "start": start,
            "snapshot": self._num_cells,  # each cell's snapshot has its number
            "number": self._num_cells,
            "max_chars": self._max_chars,
            "keep_on_error": request.keep_on_error,
            "files": [len(content) for content in request.files.values()],
            "collect_bytes": collect_bytes,
        }
        try:
            cell.send(lambda descriptors: job.send(message, descriptors))
            ended = await self._ended(cell, reply)
            end = cell.finish(exit_code=ended.exit_code, signal=ended.signal, reported_wall_time_s=ended.wall_time_s)
        except OSError as error:
            self.close()
            raise SessionDiedError(f"session `{self.id}`: it accepts no cell: {error}") from error
        except SessionDiedError as error:
            error.ending = cell.ending or error.ending
            raise
        finally:
            self._replies.pop(message["number"], None)
            cell.close()
        return self._settle(start, ended, end)

    def rollback(self, snapshot: int) -> None:
        """Let the next cell start from a snapshot."""
        if snapshot not in self.snapshots:
            raise NoSnapshotError(f"snapshot: {snapshot} is not among {self.snapshots} of session `{self.id}`")
        self.current = snapshot

    def close(self) -> None:
        """End it with everything in it."""
        if self._idle is not None:
            self._idle.stop()
        if self._job is not None:
            self._job.close()

    def _expect(self, number: int) -> "_Reply":
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        return reply

    async def _ended(self, cell: RunningCell, reply: "_Reply") -> CellEnded:
        try:
            ended = await asyncio.shield(reply)
        except asyncio.CancelledError:
            if not reply.done():
                cell.kill(Ending.CANCELLED)
            while not reply.done():  # however often the call is cancelled: the next cell must find nothing of this one
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([reply])
            late = reply.result() if reply.exception() is None else None
            if isinstance(late, CellEnded) and late.state == "kept":
                self._drop(late.number)
            raise
        if not isinstance(ended, CellEnded):
            self.close()
            raise SessionDiedError(f"session `{self.id}`: it sent an invalid message")
        return ended

    def _kill_cell(self, job: SessionJob, reply: "_Reply") -> None:
        try:
            job.send({"kind": "kill"})
        except OSError:
            self.close()
            return
        asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT_S, lambda: self._close_unless(reply))

    def _close_unless(self, reply: "_Reply") -> None:
        if not reply.done():
            self.close()

    def _settle(self, start: int, ended: CellEnded, end: CellEnd) -> CellEnd:
        if ended.state == "gone":
            self.snapshots.remove(start)
            self.current = self.current if self.current != start else max(self.snapshots, default=0)
            raise NoSnapshotError(f"snapshot: {start} of session `{self.id}` is gone: a cell must have killed it")
        if ended.state == "refused":
            raise CellRefusedError(
                f"session `{self.id}`: the kernel passes no more descriptors for the judge's user. Send the cell again"
            )
        if ended.state == "kept" and end.outcome.ending is Ending.EXITED:
            self.snapshots.append(self._num_cells)
            self.current = self._num_cells
            self._drop_oldest()
            return replace(end, outcome=replace(end.outcome, exit_code=ended.exit_code))
        if ended.state == "kept":
            self._drop(self._num_cells)
        exit_code = ended.exit_code or 1 if ended.state == "failed" else ended.exit_code
        return replace(end, outcome=replace(end.outcome, exit_code=exit_code))

    def _drop_oldest(self) -> None:
        while len(self.snapshots) > self._max_snapshots:
            oldest = next(number for number in self.snapshots if number != self.current)
            self.snapshots.remove(oldest)
            self._drop(oldest)

    def _drop(self, snapshot: int) -> None:
        if self._job is not None:
            with contextlib.suppress(OSError):
                self._job.send({"kind": "drop", "snapshot": snapshot})

    def _answer(self, message: CellEnded | Ready | None) -> None:
        """Handle a message of the session; None: the session has ended."""
        if message is None:
            while self._replies:
                _, reply = self._replies.popitem()
                if not reply.done():
                    why = "" if self._job is None or not self._job.ended_by else f": {self._job.ended_by}"
                    reply.set_exception(SessionDiedError(f"session `{self.id}`: its processes have ended{why}"))
            return
        reply = self._replies.pop(message.number if isinstance(message, CellEnded) else 0, None)
        if reply is None:
            self.close()  # no message was expected: a cell poses as the session
        elif not reply.done():
            reply.set_result(message)
