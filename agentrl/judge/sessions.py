"""Client of the judges' Python sessions: a session keeps its variables from one cell to the next, on one judge."""

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from pydantic import ValidationError

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.client import InvalidSubmissionError
from agentrl.judge.hosts import JudgeHost, JudgeHosts
from agentrl.judge.stats import JudgeStats, note_judge_wait
from agentrl.servers.session import NotAnsweredError, RefusedError
from agentrl.types import Deadline
from code_judge_server.schemas import Health, IsolationTier, VerdictStatus
from code_judge_server.sessions.schemas import CellRequest, CellResult

_WITH_SESSIONS = {IsolationTier.A, IsolationTier.B}
_SHORT_TIMEOUT_S = 5.0


class SessionKilledError(Exception):
    """An earlier cell ended its session, or killed the processes that keep the variables."""


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """A session at a judge. Cells run one after another, in the order of the calls."""

    host: JudgeHost
    session_id: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_ended: bool = False
    """True once a cell has ended it, as `exit()` does."""


class SessionClient:
    """Opens, uses and closes sessions at one or several equal judges, for one event loop."""

    def __init__(self, base_urls: tuple[str, ...], *, token: str | None) -> None:
        """Take the addresses, such as `http://127.0.0.1:8088`, and the judges' token."""
        self._hosts = JudgeHosts(base_urls, client_name=uuid.uuid4().hex[:12], token=token)
        self._stats = JudgeStats()

    async def start(self, *, timeout_s: float) -> None:
        """Open the HTTP session, and wait up to `timeout_s` for a judge.

        Raises:
            JudgeUnavailableError: none answers, one refuses the token, or one isolates too weakly for sessions.
        """
        await self._hosts.start()
        try:
            await self._hosts.require_one(lambda host: self._health(host, timeout_s))
        except (NotAnsweredError, RefusedError) as error:
            raise JudgeUnavailableError(f"judge: it does not answer: {error}") from error

    async def aclose(self) -> None:
        """Close the HTTP session."""
        await self._hosts.aclose()

    async def open(self, *, deadline: Deadline) -> OpenSession:
        """Open a session at the judge with the least load, waiting for room.

        Raises:
            JudgeUnavailableError: no judge opens one by the deadline.
        """
        last_failure = "no judge takes work"
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while True:
                    host = await self._hosts.pick()
                    try:
                        with self._hosts.attempt(host):
                            state = await self._hosts.open_session(host, timeout_s=deadline.remaining_s())
                    except NotAnsweredError as error:
                        last_failure = str(error)
                        continue
                    host.num_in_flight += 1
                    host.num_failures = 0
                    return OpenSession(host=host, session_id=state.session_id)
        except TimeoutError as error:
            self._stats.num_unavailable += 1
            raise JudgeUnavailableError(f"judge: no session by the deadline: {last_failure}") from error

    async def run_cell(self, session: OpenSession, code: str, *, deadline: Deadline) -> CellResult:
        """Run a cell after those before it; it is never sent twice, since its effect may have happened.

        Raises:
            InvalidSubmissionError: no judge would take the code.
            SessionKilledError: an earlier cell ended the session, or killed what keeps the variables.
            JudgeUnavailableError: no result by the deadline, or the session is gone, as after a restart of its judge.
        """
        async with session.turn:
            if session.is_ended:
                raise SessionKilledError(f"session {session.session_id}: an earlier cell ended it")
            request = _cell(code, deadline)
            self._stats.num_submissions += 1
            started_at = time.monotonic()
            try:
                with self._hosts.attempt(session.host):
                    result = await self._hosts.run_cell(session.host, session.session_id, request)
            except RefusedError as error:
                if await self._exists(session):
                    raise SessionKilledError(str(error)) from error
                raise self._unavailable(error) from error
            except NotAnsweredError as error:
                raise self._unavailable(error) from error
            session.is_ended = result.session_closed
        if result.status is VerdictStatus.INTERNAL_ERROR and not result.session_closed:
            raise self._unavailable(result.stderr)
        self._stats.queue_wait_s.append(result.queue_time_s)
        self._stats.round_trip_s.append(time.monotonic() - started_at)
        note_judge_wait(result.queue_time_s)
        return result

    async def close(self, session: OpenSession) -> None:
        """Close a session, whatever it does; a judge that does not answer closes it when it is idle."""
        session.host.num_in_flight -= 1
        try:
            await self._hosts.close_session(session.host, session.session_id, timeout_s=_SHORT_TIMEOUT_S)
        except (NotAnsweredError, RefusedError, JudgeUnavailableError):
            return

    def take_stats(self) -> JudgeStats:
        """Return the counts since the last call, and reset them; a submission is a cell."""
        self._stats.num_dropped_hosts, self._hosts.num_drops = self._hosts.num_drops, 0
        return self._stats.take()

    def _unavailable(self, error: object) -> JudgeUnavailableError:
        self._stats.num_unavailable += 1
        return JudgeUnavailableError(f"judge session: no result of a cell: {error}")

    async def _exists(self, session: OpenSession) -> bool:
        try:
            await self._hosts.session_state(session.host, session.session_id, timeout_s=_SHORT_TIMEOUT_S)
        except (NotAnsweredError, RefusedError):
            return False
        return True

    async def _health(self, host: JudgeHost, timeout_s: float) -> Health:
        health = await self._hosts.health(host, timeout_s=timeout_s)
        if health.isolation not in _WITH_SESSIONS:
            raise JudgeUnavailableError(
                f"judge {host.url}: sessions need isolation tier A or B, and it reaches {health.isolation}. Use the stateless "
                "Python tool, or a machine that can isolate"
            )
        return health


def _cell(code: str, deadline: Deadline) -> CellRequest:
    try:
        code.encode()
        return CellRequest(code=code, deadline_s=max(deadline.remaining_s(), 0.001))
    except UnicodeEncodeError as error:
        raise InvalidSubmissionError(f"the text is not valid Unicode: {error.reason}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSubmissionError(f"`{first['loc'][0]}` {first['msg'].removeprefix('Value error, ')}") from error
