"""Asks code judges for verdicts: batches what has to wait, and retries what was not judged.

Nothing waits for a batch to fill. A submission leaves at once while a sender is idle; those that arrive while all
senders are busy leave together, as soon as one is free. Verdicts are matched by id, never by position, and a submission
is sent again only when nothing is known of it.
"""

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from pydantic import ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_random_exponential

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.hosts import JudgeHosts, NotJudgedError, RefusedError
from agentrl.judge.stats import JudgeStats
from agentrl.types import Deadline
from code_judge_server.schemas import (
    Health,
    Language,
    Submission,
    SubmissionBatch,
    Verdict,
    VerdictBatch,
    VerdictStatus,
)

logger = logging.getLogger(__name__)

_CLOSED = "judge client: it was closed before the verdict came"
_NOT_JUDGED = (VerdictStatus.QUEUE_TIMEOUT, VerdictStatus.CANCELLED)
_jitter_s = wait_random_exponential(multiplier=0.1, max=5.0)


class InvalidSubmissionError(ValueError):
    """No judge takes such a program, such as one with a NUL in it; nothing was sent."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Pending:
    submission: Submission
    verdict: asyncio.Future[Verdict]
    deadline: Deadline
    queued_at: float = field(default_factory=time.monotonic)
    sent_at: float = math.nan
    last_failure: str = "it is still busy"


class JudgeClient:
    """A client of one or several judges, for one event loop; many callers use it at once."""

    def __init__(
        self, base_urls: Sequence[str], *, token: str | None, concurrency: int, batch_size: int, batch_timeout_s: float
    ) -> None:
        """Take the settings; nothing is opened before `start`.

        Args:
            base_urls: judges that are equal in kind, such as `http://127.0.0.1:8088`.
            token: bearer token, if the judges ask for one.
            concurrency: requests in flight at once.
            batch_size: submissions in one request at most.
            batch_timeout_s: wall clock of one request; what it left unjudged is sent again while its caller waits.
        """
        self._hosts = JudgeHosts(base_urls, token=token)
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._batch_timeout_s = batch_timeout_s
        self._queue: deque[_Pending] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._num_busy = 0
        self._ids = (f"{uuid.uuid4().hex[:12]}-{number}" for number in count())
        self._stats = JudgeStats()

    async def start(self) -> None:
        """Open the session on the running event loop."""
        await self._hosts.start()

    async def aclose(self) -> None:
        """Close the session; whoever still waits gets a `JudgeUnavailableError`."""
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        _fail(self._queue, JudgeUnavailableError(_CLOSED))
        self._queue.clear()
        await self._hosts.aclose()

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        expected_output: str | None = None,
        language: Language = Language.PYTHON,
        deadline: Deadline,
    ) -> Verdict:
        """Run a program and return what became of it, whatever that is.

        Raises:
            InvalidSubmissionError: the program cannot be sent to any judge.
            JudgeUnavailableError: it could not be judged by the deadline.
        """
        submission = _submission(next(self._ids), language, code, stdin, expected_output)
        verdict = asyncio.get_running_loop().create_future()
        pending = _Pending(submission=submission, verdict=verdict, deadline=deadline)
        self._stats.num_submissions += 1
        self._queue.append(pending)
        if len(self._senders) < self._concurrency:
            sender = asyncio.create_task(self._send_until_empty())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await self._wait(pending)

    async def check(self, *, timeout_s: float) -> list[Health]:
        """Return the health of every host, waiting up to `timeout_s` for hosts that are just starting.

        Raises:
            JudgeUnavailableError: a host does not answer, or refuses the token.
        """
        return list(await asyncio.gather(*(self._health(url, timeout_s) for url in self._hosts.urls)))

    def take_stats(self) -> JudgeStats:
        """Return what was counted since the last call, and start again from zero."""
        taken, self._stats = self._stats, JudgeStats()
        return taken

    async def _wait(self, pending: _Pending) -> Verdict:
        allowed_s = pending.deadline.remaining_s()
        try:
            async with asyncio.timeout(allowed_s):
                verdict = await pending.verdict
        except TimeoutError as error:
            self._stats.num_unavailable += 1
            raise JudgeUnavailableError(
                f"judge {self._hosts}: no verdict in {allowed_s:.3g} s: {pending.last_failure}"
            ) from error
        except JudgeUnavailableError:
            self._stats.num_unavailable += 1
            raise
        self._stats.queue_wait_s.append(pending.sent_at - pending.queued_at + verdict.queue_time_s)
        self._stats.round_trip_s.append(time.monotonic() - pending.queued_at)
        return verdict

    async def _send_until_empty(self) -> None:
        while batch := self._take_batch():
            self._num_busy += 1
            try:
                await self._deliver(batch)
            finally:
                self._num_busy -= 1

    def _take_batch(self) -> list[_Pending]:
        """Return this sender's share of the queue: spread over idle senders, so that few verdicts wait for another's."""
        num_idle = self._concurrency - self._num_busy
        share = min(self._batch_size, math.ceil(len(self._queue) / num_idle))
        batch: list[_Pending] = []
        while self._queue and len(batch) < share:
            pending = self._queue.popleft()
            if not pending.verdict.done():
                batch.append(pending)
        return batch

    async def _deliver(self, batch: Sequence[_Pending]) -> None:
        """Give every caller in `batch` a verdict or an error; stop as soon as none of them waits any more.

        Dropping the request tells the judge to drop the programs.
        """
        judging = asyncio.create_task(self._judge(batch))

        def stop_if_unwanted(_: object) -> None:
            if not _waiting(batch):
                judging.cancel()

        for pending in batch:
            pending.verdict.add_done_callback(stop_if_unwanted)
        try:
            await asyncio.wait({judging})
        finally:
            judging.cancel()
            failed = judging.done() and not judging.cancelled()
            _fail(batch, (judging.exception() if failed else None) or JudgeUnavailableError(_CLOSED))

    async def _judge(self, batch: Sequence[_Pending]) -> None:
        def note(state: RetryCallState) -> None:
            num_waiting = len(_waiting(batch))
            self._stats.num_retries += num_waiting
            logger.warning("judge: %d submissions are sent again: %s", num_waiting, _error_of(state))

        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(NotJudgedError), wait=_pause_s, before_sleep=note
        ):
            with attempt:
                await self._attempt(batch)

    async def _attempt(self, batch: Sequence[_Pending]) -> None:
        """Send what still waits, once.

        Raises:
            NotJudgedError: some of it has no verdict yet.
            JudgeUnavailableError: the judge will never give one.
        """
        waiting = _waiting(batch)
        if not waiting:
            return
        try:
            self._settle(waiting, await self._post(waiting))
        except NotJudgedError as error:
            for pending in _waiting(waiting):
                pending.last_failure = str(error)
            raise
        except RefusedError as error:
            if len(waiting) == 1:
                raise JudgeUnavailableError(f"judge: it refused a submission: {error}") from error
            # One bad submission must not take the others with it: find it by halving.
            middle = len(waiting) // 2
            await asyncio.gather(self._judge_half(waiting[:middle]), self._judge_half(waiting[middle:]))

    async def _judge_half(self, half: Sequence[_Pending]) -> None:
        try:
            await self._judge(half)
        except JudgeUnavailableError as error:
            _fail(half, error)

    async def _post(self, waiting: Sequence[_Pending]) -> VerdictBatch:
        longest_s = max(pending.deadline.remaining_s() for pending in waiting)
        deadline_s = max(0.001, min(longest_s, self._batch_timeout_s))
        for pending in waiting:
            pending.sent_at = time.monotonic()
        self._stats.num_requests += 1
        batch = SubmissionBatch(submissions=[pending.submission for pending in waiting], deadline_s=deadline_s)
        return await self._hosts.judge(batch, deadline_s=deadline_s)

    def _settle(self, sent: Sequence[_Pending], verdicts: VerdictBatch) -> None:
        by_id = {verdict.id: verdict for verdict in verdicts.verdicts}
        unjudged: list[str] = []
        for pending in _waiting(sent):
            verdict = by_id.get(pending.submission.id)
            if verdict is None or verdict.status in _NOT_JUDGED:
                unjudged.append(f"`{verdict.status}`" if verdict else "left out of the reply")
            elif verdict.status is VerdictStatus.INTERNAL_ERROR:
                # The judge has already run it twice.
                pending.verdict.set_exception(JudgeUnavailableError(f"judge: `internal_error`: {verdict.stderr}"))
            else:
                pending.verdict.set_result(verdict)
        if unjudged:
            raise NotJudgedError(f"{len(unjudged)} of {len(sent)} submissions were not judged: {unjudged[0]}")

    async def _health(self, url: str, timeout_s: float) -> Health:
        patiently = AsyncRetrying(
            retry=retry_if_exception_type(NotJudgedError),
            wait=_pause_s,
            stop=stop_after_delay(timeout_s),
            reraise=True,
        )
        try:
            return await patiently(self._hosts.health, url, timeout_s=timeout_s)
        except (NotJudgedError, RefusedError) as error:
            raise JudgeUnavailableError(
                f"judge: it does not answer: {error}. Start it with `python -m code_judge_server "
                "--require-isolation D` (tier D is all that it reaches yet), or correct `host_addr` and `host_port`"
            ) from error


def _submission(id_: str, language: Language, code: str, stdin: str, expected_output: str | None) -> Submission:
    try:
        for text in (code, stdin, expected_output or ""):
            text.encode()
        return Submission(id=id_, language=language, code=code, stdin=stdin, expected_output=expected_output)
    except UnicodeEncodeError as error:
        raise InvalidSubmissionError(f"the text is not valid Unicode: {error.reason}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSubmissionError(f"`{first['loc'][0]}` {first['msg'].removeprefix('Value error, ')}") from error


def _waiting(batch: Iterable[_Pending]) -> list[_Pending]:
    return [pending for pending in batch if not pending.verdict.done()]


def _fail(batch: Iterable[_Pending], error: BaseException) -> None:
    for pending in _waiting(batch):
        pending.verdict.set_exception(error)


def _pause_s(state: RetryCallState) -> float:
    """Return jittered seconds to the next try, on top of what the judge asked for."""
    error = _error_of(state)
    return _jitter_s(state) + (error.retry_after_s if isinstance(error, NotJudgedError) else 0.0)


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
