"""All sessions of a server: their number, their lifetimes, and their turns in the queue."""

import asyncio
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.limits import as_limits
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.queueing.shared_capacity import SharedCapacity
from code_judge_server.sandbox.executor import Executor, ExecutorError, JobLimits
from code_judge_server.schemas import Submission
from code_judge_server.sessions.schemas import CellRequest, CellResult, SessionRequest, SessionState
from code_judge_server.sessions.session import Session
from code_judge_server.sessions.turn import Turn
from code_judge_server.settings import MIB, Settings

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
"""Attempts to start a session, each in a fresh slot; as many as for a job."""
_OPEN_TIMEOUT_S = 30.0
"""Longest wait of a client for a session: many times what a restart of all parts takes."""


class NoSessionsError(Exception):
    """This server cannot hold sessions."""


class NoSuchPreloadError(Exception):
    """A module set of that name does not exist."""


class TooManySessionsError(Exception):
    """There is no room for another session."""


class SessionNotOpenedError(Exception):
    """Parts of the judge died and are not restarted in time; the same request may succeed a little later."""


class NoSuchSessionError(Exception):
    """A session of that name does not exist, or no longer does."""


class SessionManager:
    """Opens sessions and runs their cells, which take turns with the judged programs; only a `JailExecutor` has room."""

    def __init__(self, executor: Executor, queue: SubmissionQueue, settings: Settings) -> None:
        self._executor = executor
        self._jail = executor if isinstance(executor, JailExecutor) else None
        self._queue = queue
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._num_cells: Counter[str] = Counter()
        """Running and waiting cells, by session."""
        self._openings: set[asyncio.Task[Session]] = set()
        self._free = list(range(0 if self._jail is None else self._jail.num_private_slots))
        self._places = SharedCapacity(len(self._free))

    async def open(self, request: SessionRequest, *, client: str) -> SessionState:
        """Open a session; cancelling the call closes it.

        Raises:
            NoSessionsError: this server cannot hold sessions.
            TooManySessionsError: all places are taken, or too many by this client.
            NoSuchPreloadError: the module set does not exist.
            SessionNotOpenedError: its processes do not start, or not in time.
        """
        jail = self._jail
        if jail is None or not jail.num_private_slots:
            raise NoSessionsError(
                "sessions: this server cannot hold any: they need isolation tier A or B, and max_sessions > 0"
            )
        if not self._places.fits(client, 1):
            raise TooManySessionsError(
                f"sessions: {self._places.used} of {self._places.capacity} (max_sessions) are open, and one more is too "
                "many, or too many for one client"
            )
        self._queue.refuse_if_draining()
        preload = _preload(jail, request.preload)
        limits = self._settings.limit_policy.effective(request.limits)
        self._places.take(client, 1)
        opening = asyncio.create_task(self._open(jail, self._free.pop(), preload, limits, client=client))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        session = await _opened(opening)
        self._touch(session)
        return self._state(session)

    async def _open(self, jail: JailExecutor, index: int, preload: str, limits: JobLimits, *, client: str) -> Session:
        """Open a session in a free place, even if the client has gone: a half-open slot cannot be given back."""

        def free_place() -> None:
            self._free.append(index)
            self._places.give_back(client, 1)

        try:
            session, death = await self._start(jail, index, preload, limits)
        except BaseException:
            free_place()
            raise

        def forget(_: object) -> None:
            free_place()
            self._sessions.pop(session.id, None)

        self._sessions[session.id] = session
        death.add_done_callback(forget)
        return session

    async def _start(
        self, jail: JailExecutor, index: int, preload: str, limits: JobLimits
    ) -> tuple[Session, "asyncio.Future[Session]"]:
        """Start a session, once more if its slot dies; also return a future that is done when nothing is left of it.

        Raises:
            ExecutorError: it does not start, and nothing is left of the attempts.
        """
        failure: ExecutorError | None = None
        for _ in range(_ATTEMPTS):
            slot = await jail.open_private_slot(index, preload)
            session = Session(
                secrets.token_urlsafe(16),
                limits=limits,
                max_snapshots=self._settings.max_snapshots,
                max_chars=self._settings.max_reply_chars,
                max_collect_bytes=self._settings.max_collect_mb * MIB,
            )
            death: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
            sampled = jail.memory_enforcement == "sampled"
            try:
                await session.start(slot, python=sys.executable, memory_is_sampled=sampled, on_death=death.set_result)
                return session, death
            except ExecutorError as error:
                logger.warning("sessions: %s", error)
                failure = error
            except BaseException:
                session.close()
                raise
            await death  # the next attempt uses the same place
        raise ExecutorError(f"{_ATTEMPTS} slots failed to start one session: {failure}") from failure

    def state(self, session_id: str) -> SessionState:
        """Return the state of a session."""
        return self._state(self._session(session_id))

    def rollback(self, session_id: str, snapshot: int) -> SessionState:
        """Let a session's next cell start from one of its snapshots."""
        session = self._session(session_id)
        session.rollback(snapshot)
        self._touch(session)
        return self._state(session)

    def close(self, session_id: str) -> None:
        """Close a session, whatever it does."""
        self._end(self._session(session_id))

    def close_all(self) -> None:
        """Close every session."""
        for session in list(self._sessions.values()):
            self._end(session)

    async def run(
        self, session_id: str, cell: CellRequest, *, client: str, room: ExitStack | None = None
    ) -> CellResult:
        """Run a cell after the previous one has ended, when it has a turn; cancelling the call kills it.

        Raises:
            NoSuchSessionError: the session does not exist.
            NoSnapshotError: it has no such snapshot.
            QueueFullError: the queue is full.
            DrainingError: the server is stopping.
        """
        entered_at = time.monotonic()
        session = self._session(session_id)
        limits = self._limits(session, cell)
        turn = Turn(
            session,
            cell,
            limits=limits,
            executor=self._executor,
            max_chars=self._settings.max_reply_chars,
        )
        subject = Submission(id=session.id, language="python", code=cell.code)
        async with self._in_use(session):
            try:
                async with asyncio.timeout(cell.deadline_s):
                    await session.turn.acquire()
            except TimeoutError:
                return turn.result(self._queue.timed_out(subject, entered_at=entered_at))
            try:
                left_s = None if cell.deadline_s is None else cell.deadline_s - (time.monotonic() - entered_at)
                verdict = await self._queue.run_work(
                    subject, turn.take, client=client, deadline_s=left_s, entered_at=entered_at, room=room
                )
            finally:
                session.turn.release()
        return turn.result(verdict)

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or not session.alive:
            raise NoSuchSessionError(f"session: `{session_id[:64]}` is not open on this server, or not any more")
        return session

    def _limits(self, session: Session, cell: CellRequest) -> JobLimits:
        requested = {
            "cpu_time_s": cell.cpu_time_s or session.limits.cpu_time_s,
            "wall_time_s": cell.wall_time_s or session.limits.wall_time_s,
        }
        return self._settings.limit_policy.effective(as_limits(replace(session.limits, **requested)))

    @asynccontextmanager
    async def _in_use(self, session: Session) -> AsyncIterator[None]:
        """Keep a session from expiring while one of its cells runs or waits."""
        self._cancel_expiry(session)
        self._num_cells[session.id] += 1
        try:
            yield
        finally:
            self._num_cells[session.id] -= 1
            if not self._num_cells[session.id]:
                del self._num_cells[session.id]
            self._touch(session)

    def _touch(self, session: Session) -> None:
        self._cancel_expiry(session)
        if session.alive and session.id not in self._num_cells:
            loop = asyncio.get_running_loop()
            self._expiries[session.id] = loop.call_later(self._settings.session_idle_s, self._end, session)

    def _cancel_expiry(self, session: Session) -> None:
        if (timer := self._expiries.pop(session.id, None)) is not None:
            timer.cancel()

    def _end(self, session: Session) -> None:
        self._cancel_expiry(session)
        session.close()

    def _state(self, session: Session) -> SessionState:
        return SessionState(
            session_id=session.id,
            snapshot=session.current,
            snapshots=session.snapshots,
            limits=as_limits(session.limits),
            idle_timeout_s=self._settings.session_idle_s,
        )


def _preload(executor: Executor, wanted: str | None) -> str:
    if wanted is not None and wanted not in executor.preloads:
        raise NoSuchPreloadError(f"preload: `{wanted}` is not among {list(executor.preloads)}")
    return wanted or max(executor.preloads, key=lambda name: len(executor.preloads[name]))


async def _opened(opening: "asyncio.Task[Session]") -> Session:
    """Return a session after it has opened; if the caller is cancelled, it is closed once it is open.

    Raises:
        SessionNotOpenedError: it does not start, or not in time.
    """
    try:
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            return await asyncio.shield(opening)
    except (ExecutorError, TimeoutError) as error:
        opening.add_done_callback(_close_unwanted)
        why = str(error) or f"it takes more than {_OPEN_TIMEOUT_S:g} s"
        raise SessionNotOpenedError(
            f"sessions: none can be opened now: {why}. The judge is restarting parts of itself, or is very busy. "
            "Retry after the time in `Retry-After`"
        ) from error
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opening: "asyncio.Task[Session]") -> None:
    """Close a session whose client has disconnected, or was refused meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
