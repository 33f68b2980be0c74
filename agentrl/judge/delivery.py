"""Delivery of one batch: unjudged submissions are sent again until no caller waits.

Each caller gets its verdict as soon as the judge has it. A retried submission keeps its id: a judge that has already run it
answers from memory.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.hosts import JudgeHost, JudgeHosts
from agentrl.judge.stats import JudgeStats
from agentrl.servers.session import NotAnsweredError, RefusedError
from agentrl.types import Deadline
from code_judge_server.schemas import Submission, SubmissionBatch, Verdict, VerdictStatus

logger = logging.getLogger(__name__)

CLOSED = "judge client: it was closed before the verdict came"
_NOT_JUDGED = (VerdictStatus.QUEUE_TIMEOUT, VerdictStatus.CANCELLED)
_NEARLY_DONE = 1 / 8
"""Share of a batch that may still run when its sender takes the next batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """One call of `JudgeClient.run`; done when `verdict` is set, an error, or cancelled."""

    submission: Submission
    verdict: asyncio.Future[Verdict]
    deadline: Deadline
    queued_at: float = field(default_factory=time.monotonic)
    sent_at: float = math.nan
    last_failure: str = "it is still busy"


def waiting(batch: Iterable[Pending]) -> list[Pending]:
    """Return the calls that are not done."""
    return [pending for pending in batch if not pending.verdict.done()]


def fail(batch: Iterable[Pending], error: Exception) -> None:
    """Set `error` on the calls that are not done."""
    for pending in waiting(batch):
        pending.verdict.set_exception(error)


class Delivery:
    """Gives every caller in `batch` a verdict or an error."""

    def __init__(
        self, batch: Sequence[Pending], hosts: JudgeHosts, stats: JudgeStats, *, request_timeout_s: float
    ) -> None:
        """Take the batch; `request_timeout_s` is the wall clock of one request."""
        self.nearly_done = asyncio.Event()
        self._batch = batch
        self._hosts = hosts
        self._stats = stats
        self._request_timeout_s = request_timeout_s
        self._num_left = len(batch)
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Deliver until no caller waits; then dropping the request makes the judge kill the rest."""
        self._task = asyncio.current_task()
        for pending in self._batch:
            pending.verdict.add_done_callback(self._count_down)
        error: Exception = JudgeUnavailableError(CLOSED)
        try:
            await self._judge(self._batch)
        except Exception as failure:  # noqa: BLE001 - a bug too: its callers get it
            error = failure
        finally:
            self.nearly_done.set()
            fail(self._batch, error)

    def _count_down(self, _: object) -> None:
        self._num_left -= 1
        if self._num_left <= len(self._batch) * _NEARLY_DONE:
            self.nearly_done.set()
        # With a verdict for each, the reply ends by itself, and its connection can be reused.
        if self._task and self._num_left == 0 and any(pending.verdict.cancelled() for pending in self._batch):
            self._task.cancel()

    async def _judge(self, batch: Sequence[Pending]) -> None:
        while left := waiting(batch):
            try:
                await self._attempt(left, await self._hosts.pick())
            except NotAnsweredError as error:
                left = waiting(left)
                self._stats.num_retries += len(left)
                for pending in left:
                    pending.last_failure = str(error)
                logger.warning("judge: %d submissions are sent again: %s", len(left), error)
            except RefusedError as error:
                left = waiting(left)
                if len(left) == 1:
                    fail(left, JudgeUnavailableError(f"judge: it refused a submission: {error}"))
                else:  # find the one bad submission by halving
                    middle = len(left) // 2
                    await self._judge(left[:middle])
                    await self._judge(left[middle:])

    async def _attempt(self, left: Sequence[Pending], host: JudgeHost) -> None:
        """Ask `host` once; raises what `JudgeHosts.judge` raises, and NotAnsweredError if verdicts are missing."""
        longest_s = max(pending.deadline.remaining_s() for pending in left)
        deadline_s = max(0.001, min(longest_s, self._request_timeout_s))
        now = time.monotonic()
        for pending in left:
            pending.sent_at = now
        self._stats.num_requests += 1
        batch = SubmissionBatch(submissions=[pending.submission for pending in left], deadline_s=deadline_s)
        by_id = {pending.submission.id: pending for pending in left}
        unjudged = "left out of the reply"
        async with aclosing(self._hosts.judge(host, batch, deadline_s=deadline_s)) as verdicts:
            async for verdict in verdicts:
                pending = by_id.get(verdict.id)
                if pending is not None and not self._settle(pending, verdict):
                    unjudged = f"`{verdict.status}`"
        if left := waiting(left):
            self._hosts.skip(host)
            raise NotAnsweredError(f"{host.url}: {len(left)} of {len(by_id)} submissions were not judged: {unjudged}")

    def _settle(self, pending: Pending, verdict: Verdict) -> bool:
        """Give a verdict to its caller; return False if the submission was not judged."""
        if pending.verdict.done():
            return True
        if verdict.status in _NOT_JUDGED:
            return False
        if verdict.status is VerdictStatus.INTERNAL_ERROR:
            pending.verdict.set_exception(JudgeUnavailableError(f"judge: `internal_error`: {verdict.stderr}"))
        else:
            pending.verdict.set_result(verdict)
        return True
