"""Client of the code judges: sends submissions in batches, and retries those without a verdict.

Nothing waits for a batch to fill. A submission leaves at once while a sender is idle; submissions that arrive while all senders
are busy leave together, once one is free. A sender is free when most of its batch is judged, so that slow programs delay no
others. Verdicts are matched by id, and a submission is sent again only if its result is unknown.
"""

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.delivery import CLOSED, Delivery, Pending, fail
from agentrl.judge.hosts import JudgeHost, JudgeHosts
from agentrl.judge.stats import JudgeStats, note_judge_wait
from agentrl.servers.session import NotAnsweredError, RefusedError
from agentrl.types import Deadline
from code_judge_server.schemas import Health, Submission, Verdict

_MAX_REQUESTS_PER_SENDER = 8
"""Limit of open requests, nearly done ones included; beyond it senders wait for theirs to end."""
_start_jitter_s = wait_random_exponential(multiplier=0.1, max=1.0)


class InvalidSubmissionError(ValueError):
    """No judge takes the program, such as one with a NUL; nothing was sent."""


class JudgeClient:
    """A client of one or several judges, for one event loop; many callers use it at once."""

    def __init__(
        self, base_urls: Sequence[str], *, token: str | None, concurrency: int, batch_size: int, batch_timeout_s: float
    ) -> None:
        """Take the addresses of equal judges, such as `http://127.0.0.1:8088`, and the settings of `JudgeConnection`."""
        self._stats = JudgeStats()
        name = uuid.uuid4().hex[:12]
        self._ids = (f"{name}-{number}" for number in count())
        self._hosts = JudgeHosts(base_urls, client_name=name, token=token)
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._batch_timeout_s = batch_timeout_s
        self._queue: deque[Pending] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._num_busy = 0

    @property
    def urls(self) -> list[str]:
        """Addresses of the judges, each once."""
        return [host.url for host in self._hosts.hosts]

    async def start(self) -> None:
        """Open the session on the running event loop."""
        await self._hosts.start()

    async def aclose(self) -> None:
        """Close the session; waiting callers get a `JudgeUnavailableError`."""
        tasks = [*self._senders, *self._deliveries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._senders.clear()  # a sender that was cancelled before its first step is still in it
        fail(self._queue, JudgeUnavailableError(CLOSED))
        self._queue.clear()
        await self._hosts.aclose()

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        expected_output: str | None = None,
        language: str = "python",
        deadline: Deadline,
    ) -> Verdict:
        """Run a program and return its verdict; `queue_time_s` includes the wait in this client.

        Raises:
            InvalidSubmissionError: no judge would take the program.
            JudgeUnavailableError: no verdict by the deadline.
        """
        submission = _submission(next(self._ids), language, code, stdin, expected_output)
        verdict = asyncio.get_running_loop().create_future()
        pending = Pending(submission=submission, verdict=verdict, deadline=deadline)
        self._stats.num_submissions += 1
        self._queue.append(pending)
        if len(self._senders) < self._concurrency:
            self._senders.add(asyncio.create_task(self._send_until_empty()))
        allowed_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(allowed_s):
                return self._count(pending, await verdict)
        except TimeoutError as error:
            self._stats.num_unavailable += 1
            raise JudgeUnavailableError(
                f"judge {', '.join(self.urls)}: no verdict in {allowed_s:.3g} s: {pending.last_failure}"
            ) from error
        except JudgeUnavailableError:
            self._stats.num_unavailable += 1
            raise

    async def check(self, *, timeout_s: float) -> list[Health]:
        """Return the health of every host, waiting up to `timeout_s` for starting hosts.

        Raises:
            JudgeUnavailableError: a host does not answer, or refuses the token.
        """
        with _no_answer():
            return list(await asyncio.gather(*(self._health(host, timeout_s) for host in self._hosts.hosts)))

    async def require_one(self, *, timeout_s: float) -> None:
        """Wait up to `timeout_s` for an answer of a judge; judges without an answer are dropped until they answer.

        Raises:
            JudgeUnavailableError: no judge answers, or one refuses to, as with another token.
        """
        with _no_answer():
            await self._hosts.require_one(lambda host: self._health(host, timeout_s))

    def take_stats(self) -> JudgeStats:
        """Return the counts since the last call, and reset them."""
        self._stats.num_dropped_hosts, self._hosts.num_drops = self._hosts.num_drops, 0
        return self._stats.take()

    def _count(self, pending: Pending, verdict: Verdict) -> Verdict:
        queue_wait_s = pending.sent_at - pending.queued_at + verdict.queue_time_s
        self._stats.queue_wait_s.append(queue_wait_s)
        note_judge_wait(queue_wait_s)
        self._stats.round_trip_s.append(time.monotonic() - pending.queued_at)
        return verdict.model_copy(update={"queue_time_s": queue_wait_s})

    async def _send_until_empty(self) -> None:
        try:
            while batch := self._take_batch():
                await self._send(batch)
        finally:
            # Now, not when the task is done: a submission queued in between would rely on this sender.
            self._senders -= {asyncio.current_task()}

    async def _send(self, batch: list[Pending]) -> None:
        """Send a batch, and wait until most of it is judged."""
        delivery = Delivery(batch, self._hosts, self._stats, request_timeout_s=self._batch_timeout_s)
        task = asyncio.create_task(delivery.run())
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
        self._num_busy += 1
        try:
            if len(self._deliveries) < self._concurrency * _MAX_REQUESTS_PER_SENDER:
                await delivery.nearly_done.wait()
            else:
                await asyncio.wait({task})
        finally:
            self._num_busy -= 1

    def _take_batch(self) -> list[Pending]:
        """Return this sender's share of the queue, which is spread over the idle senders."""
        num_idle = self._concurrency - self._num_busy
        share = min(self._batch_size, math.ceil(len(self._queue) / num_idle))
        batch: list[Pending] = []
        while self._queue and len(batch) < share:
            pending = self._queue.popleft()
            if not pending.verdict.done():
                batch.append(pending)
        return batch

    async def _health(self, host: JudgeHost, timeout_s: float) -> Health:
        patiently = AsyncRetrying(
            retry=retry_if_exception_type(NotAnsweredError),
            wait=_start_jitter_s,
            stop=stop_after_delay(timeout_s),
            reraise=True,
        )
        return await patiently(self._hosts.health, host, timeout_s=timeout_s)


@contextmanager
def _no_answer() -> Iterator[None]:
    """Raise `JudgeUnavailableError` with the way out if no judge answers."""
    try:
        yield
    except (NotAnsweredError, RefusedError) as error:
        raise JudgeUnavailableError(
            f"judge: it does not answer: {error}. Start it with `python -m code_judge_server`, or correct its address "
            "(`judge.hosts`, or the tool's `host_addr` and `host_port`); other machines cannot reach the run's own judge "
            "without `judge.placement=per_node`"
        ) from error


def _submission(id_: str, language: str, code: str, stdin: str, expected_output: str | None) -> Submission:
    try:
        for text in (code, stdin, expected_output or ""):
            text.encode()
        return Submission(id=id_, language=language, code=code, stdin=stdin, expected_output=expected_output)
    except UnicodeEncodeError as error:
        raise InvalidSubmissionError(f"the text is not valid Unicode: {error.reason}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSubmissionError(f"`{first['loc'][0]}` {first['msg'].removeprefix('Value error, ')}") from error
