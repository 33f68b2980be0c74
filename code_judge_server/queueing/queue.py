"""The queue for slots: accepts submissions, refuses those beyond its room, and expires those that wait too long."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack

from code_judge_server.judging.judge import Judge
from code_judge_server.metrics import Metrics
from code_judge_server.queueing.idempotency import Idempotency, content_key
from code_judge_server.queueing.pending_batch import PendingBatch
from code_judge_server.queueing.queued_run import QueuedRun, Work
from code_judge_server.queueing.scheduler import Scheduler
from code_judge_server.queueing.shared_capacity import SharedCapacity
from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Submission, Verdict, VerdictStatus
from code_judge_server.settings import MIB, Settings


class _NotAcceptedError(Exception):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(_NotAcceptedError):
    """The queue has no room; there should be some after `retry_after_s`."""


class DrainingError(_NotAcceptedError):
    """The server is stopping; another should have replaced it after `retry_after_s`."""


_MAX_RETRY_AFTER_S = 60
_MAX_DEADLINE_S = 366 * 86400.0
"""Longer deadlines are lowered to this, because event loops have an upper bound."""


class SubmissionQueue:
    """Accepts the submissions of a request, within the room that the settings give, and collects their verdicts."""

    def __init__(self, judge: Judge, executor: Executor, settings: Settings, metrics: Metrics) -> None:
        self.is_draining = False
        self._judge = judge
        self._metrics = metrics
        self._settings = settings
        self._scheduler = Scheduler(
            judge,
            executor,
            num_slots=settings.slot_count,
            total_slots=settings.total_slots,
            capacity=settings.queue_capacity,
            on_end=self._ended,
        )
        self._idempotency = Idempotency(max_bytes=settings.verdict_cache_mb * MIB, max_age_s=settings.verdict_cache_s)
        self._reply_memory = SharedCapacity(settings.reply_memory_mb * MIB)
        self._in_flight: set[QueuedRun] = set()

    @property
    def num_slots(self) -> int:
        """Submissions judged at once, apart from sleeping ones."""
        return self._scheduler.num_slots

    @property
    def num_waiting(self) -> int:
        """Submissions that wait for a slot."""
        return self._scheduler.num_waiting

    @property
    def num_running(self) -> int:
        """Submissions that are being judged."""
        return self._scheduler.num_running

    @property
    def is_idle(self) -> bool:
        """True if nothing waits or is being judged."""
        return not self._in_flight and not self._scheduler.room.has_waiters and not self.num_running

    def estimated_wait_s(self, client: str) -> float:
        """Return the expected wait for a slot of a new submission by a client."""
        return self._scheduler.estimated_wait_s(client)

    def enqueue(
        self,
        submissions: Sequence[Submission],
        *,
        client: str,
        keys: Sequence[bytes] | None = None,
        deadline_s: float | None = None,
    ) -> PendingBatch:
        """Let submissions wait for a slot, or refuse them at once.

        A submission that the same client sent before, with the same id and content, is not judged again. At the deadline
        waiting submissions get `queue_timeout`; running ones are killed and get `cancelled`. Without their `content_keys` these
        are computed here, blocking.

        Returns:
            The batch of their verdicts, which the caller must close.

        Raises:
            QueueFullError: there is no room for so many, or the wait is longer than `max_estimated_wait_s`.
            DrainingError: the server is stopping.
        """
        self.refuse_if_draining()
        batch = self._new_batch(client, deadline_s=deadline_s, start_by_s=None)
        now = time.monotonic()
        new: list[tuple[int, QueuedRun]] = []
        keys = keys or [content_key(client, submission) for submission in submissions]
        for index, (submission, key) in enumerate(zip(submissions, keys, strict=True)):
            if (run := self._idempotency.run(key)) is not None:
                batch.wait_for(run, index)
                self._metrics.count_shared()
            elif (verdict := self._idempotency.verdict(key)) is not None:
                batch.give_at(index, verdict)
                self._metrics.count_shared()
            else:
                new.append((index, QueuedRun(submission=submission, client=client, entered_at=now, key=key)))
        try:
            self._refuse_if_full(client, len(new))
        except QueueFullError:
            batch.close()
            raise
        self._enter(batch, new)
        return batch

    async def judge_all(
        self,
        submissions: Sequence[Submission],
        *,
        client: str,
        max_queue_time_s: float | None = None,
        deadline_s: float | None = None,
        room: ExitStack | None = None,
    ) -> list[Verdict]:
        """Judge submissions and return their verdicts in the same order; cancelling the call kills them.

        Submissions without room wait for it outside the queue, and none shares an earlier verdict. Those that wait longer than
        `max_queue_time_s` get `queue_timeout`. `room` is closed when the verdicts are no longer held; without, they are
        released on return.

        Raises:
            DrainingError: the server is stopping.
        """
        self.refuse_if_draining()
        entered_at = time.monotonic()
        start_by_s = min(max_queue_time_s or _MAX_DEADLINE_S, deadline_s or _MAX_DEADLINE_S)
        try:
            async with asyncio.timeout(start_by_s):
                await self._scheduler.room.wait_until_fits(client, len(submissions))
        except TimeoutError:
            waited_s = time.monotonic() - entered_at
            status = VerdictStatus.QUEUE_TIMEOUT
            return [self._judge.unjudged(submission, status, queue_time_s=waited_s) for submission in submissions]
        waited_s = time.monotonic() - entered_at
        batch = self._new_batch(
            client, deadline_s=None if deadline_s is None else deadline_s - waited_s, start_by_s=start_by_s - waited_s
        )
        self._enter(
            batch,
            [
                (index, QueuedRun(submission=item, client=client, entered_at=entered_at))
                for index, item in enumerate(submissions)
            ],
        )  # no reference to the runs is kept, as an ended run holds its whole verdict
        return await self._verdicts(batch, room)

    async def run_work(
        self,
        submission: Submission,
        work: Work,
        *,
        client: str,
        deadline_s: float | None = None,
        entered_at: float | None = None,
        room: ExitStack | None = None,
    ) -> Verdict:
        """Call `work` when a slot is free, and return its verdict; cancelling the call cancels it.

        `submission` is for the log and for verdicts without an outcome; it waits since `entered_at` (by `time.monotonic`), or
        since now. `deadline_s` and `room` are as in `enqueue` and `judge_all`.

        Raises:
            QueueFullError: there is no room, or the wait is longer than `max_estimated_wait_s`.
            DrainingError: the server is stopping.
        """
        self.refuse_if_draining()
        self._refuse_if_full(client, 1)
        batch = self._new_batch(client, deadline_s=deadline_s, start_by_s=None)
        run = QueuedRun(submission=submission, client=client, entered_at=entered_at or time.monotonic(), work=work)
        self._enter(batch, [(0, run)])
        return (await self._verdicts(batch, room))[0]

    def timed_out(self, submission: Submission, *, entered_at: float) -> Verdict:
        """Return the verdict on a submission that has waited since `entered_at`, and waits no longer."""
        waited_s = time.monotonic() - entered_at
        return self._judge.unjudged(submission, VerdictStatus.QUEUE_TIMEOUT, queue_time_s=waited_s)

    def start_draining(self) -> None:
        """Accept no more submissions."""
        self.is_draining = True

    def refuse_if_draining(self) -> None:
        """Raise DrainingError after `start_draining`."""
        if self.is_draining:
            raise DrainingError(
                "the server is stopping and accepts no submissions. Use another server, or retry later",
                retry_after_s=math.ceil(min(max(self._settings.drain_timeout_s, 1), _MAX_RETRY_AFTER_S)),
            )

    def cancel_all(self) -> None:
        """Answer everything now: waiting submissions get `queue_timeout`; running ones are killed and get `cancelled`."""
        self._scheduler.room.refuse_waiting()
        for run in list(self._in_flight):
            verdict = self._unjudged(run, _unfinished(run), explanation="the server was stopped")
            for waiter in run.waiters:
                waiter.give(run, verdict)
            run.waiters.clear()
            self._idempotency.ended(run, None)
            self._scheduler.give_up(run)

    async def _verdicts(self, batch: PendingBatch, room: ExitStack | None) -> list[Verdict]:
        try:
            verdicts = await batch.all()
        except BaseException:
            batch.close()
            raise
        if room is None:
            batch.close()
        else:
            room.callback(batch.close)
        return verdicts

    def _enter(self, batch: PendingBatch, runs: list[tuple[int, QueuedRun]]) -> None:
        for index, run in runs:
            batch.wait_for(run, index)
            self._idempotency.started(run)
            self._in_flight.add(run)
        self._scheduler.enter(run for _, run in runs)

    def _new_batch(self, client: str, *, deadline_s: float | None, start_by_s: float | None) -> PendingBatch:
        batch = PendingBatch(client, leave=self._leave, reply_memory=self._reply_memory, metrics=self._metrics)
        now = asyncio.get_running_loop().time()
        if deadline_s is not None:
            batch.call_at(now + min(deadline_s, _MAX_DEADLINE_S), lambda runs: self._expire(batch, runs))
        if start_by_s is not None:
            batch.call_at(now + start_by_s, lambda runs: self._expire(batch, [run for run in runs if run.task is None]))
        return batch

    def _refuse_if_full(self, client: str, num_new: int) -> None:
        has_room = self._scheduler.room.fits(client, num_new)
        if has_room and self._scheduler.longest_wait_s() <= self._settings.max_estimated_wait_s:
            return
        wait_s = self.estimated_wait_s(client)
        if not has_room:
            raise QueueFullError(
                f"queue: {self.num_waiting} of {self._settings.queue_capacity} places (queue_capacity) are taken, and "
                f"{num_new} more are too many for one client",
                retry_after_s=math.ceil(min(max(wait_s, 1), _MAX_RETRY_AFTER_S)),
            )
        excess_s = wait_s - self._settings.max_estimated_wait_s
        if num_new and excess_s > 0:
            raise QueueFullError(
                f"queue: the wait is about {wait_s:.0f} s, more than {self._settings.max_estimated_wait_s:g} s "
                "(max_estimated_wait_s)",
                retry_after_s=math.ceil(min(max(excess_s, 1), _MAX_RETRY_AFTER_S)),
            )

    def _leave(self, run: QueuedRun, batch: PendingBatch) -> None:
        run.waiters.remove(batch)
        if not run.waiters:
            self._idempotency.ended(run, None)
            self._scheduler.give_up(run)

    def _ended(self, run: QueuedRun, verdict: Verdict | None) -> None:
        self._in_flight.discard(run)
        self._idempotency.ended(run, verdict)
        if verdict is None:
            return
        self._metrics.count_judged(verdict)
        for waiter in run.waiters:
            waiter.give(run, verdict)
        run.waiters.clear()

    def _expire(self, batch: PendingBatch, runs: list[QueuedRun]) -> None:
        for run in runs:
            batch.give(run, self._unjudged(run, _unfinished(run)))
            self._leave(run, batch)

    def _unjudged(self, run: QueuedRun, status: VerdictStatus, explanation: str = "") -> Verdict:
        now = time.monotonic()
        started_at = now if run.task is None else run.started_at
        return self._judge.unjudged(
            run.submission,
            status,
            queue_time_s=started_at - run.entered_at,
            explanation=explanation,
            cpu_time_s=run.spent.cpu_time_s,
            wall_time_s=run.slot_time_until_s(now),
        )


def _unfinished(run: QueuedRun) -> VerdictStatus:
    return VerdictStatus.QUEUE_TIMEOUT if run.task is None else VerdictStatus.CANCELLED
