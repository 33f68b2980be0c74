"""The bounded queue before the slots: who waits, for how long, and what is too much."""

import asyncio
import math
import time
from collections.abc import Sequence

from code_judge_server.judging import Judge
from code_judge_server.schemas import Submission, Verdict, VerdictStatus

_SMOOTHING = 0.05
"""Weight of the newest program in the running mean of the time that programs take."""
_MAX_RETRY_AFTER_S = 60


class QueueFullError(Exception):
    """There is no room for a request; `retry_after_s` is when there should be."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SubmissionQueue:
    """First come, first served, before `num_slots` slots; cancelling a call takes its submissions out and kills theirs.

    Args:
        judge: What judges a submission whose turn it is.
        num_slots: Submissions judged at once.
        capacity: Submissions that wait at most.
    """

    def __init__(self, judge: Judge, *, num_slots: int, capacity: int) -> None:
        self.num_slots = num_slots
        self.capacity = capacity
        self._judge = judge
        self._room = asyncio.Semaphore(capacity)
        self._slots = asyncio.Semaphore(num_slots)
        self._num_waiting = 0
        self._num_running = 0
        self._mean_run_time_s = 0.1

    @property
    def num_waiting(self) -> int:
        """Submissions that wait for a slot."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Submissions that are being judged."""
        return self._num_running

    def refuse_if_full(self, num_submissions: int) -> None:
        """Raise unless so many submissions more can wait now.

        Raises:
            QueueFullError: they cannot.
        """
        if self._num_waiting + num_submissions > self.capacity:
            wait_s = math.ceil(self._num_waiting * self._mean_run_time_s / self.num_slots)
            raise QueueFullError(
                f"queue: {self._num_waiting} of {self.capacity} places are taken, {num_submissions} more do not fit",
                retry_after_s=min(max(wait_s, 1), _MAX_RETRY_AFTER_S),
            )

    async def judge_all(
        self,
        submissions: Sequence[Submission],
        *,
        max_queue_time_s: float | None = None,
        deadline_s: float | None = None,
    ) -> list[Verdict]:
        """Judge submissions and return their verdicts in the same order.

        Args:
            submissions: What to judge; all wait at once.
            max_queue_time_s: What waits longer is a `queue_timeout`; None waits for ever, for room in the queue too.
            deadline_s: What waits still is a `queue_timeout`, what runs still is killed and `cancelled`.
        """
        now = asyncio.get_running_loop().time()
        deadline = None if deadline_s is None else now + deadline_s
        start_by = deadline if max_queue_time_s is None else now + max_queue_time_s
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._judge_one(submission, start_by=start_by, deadline=deadline))
                for submission in submissions
            ]
        return [task.result() for task in tasks]

    async def _judge_one(self, submission: Submission, *, start_by: float | None, deadline: float | None) -> Verdict:
        entered_at = time.monotonic()
        try:
            await self._take_slot(start_by)
        except TimeoutError:
            return self._unjudged(submission, VerdictStatus.QUEUE_TIMEOUT, entered_at)
        started_at = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._judge.judge(submission, queue_time_s=started_at - entered_at)
        except TimeoutError:
            return self._unjudged(submission, VerdictStatus.CANCELLED, entered_at)
        finally:
            self._num_running -= 1
            self._slots.release()
            self._mean_run_time_s += _SMOOTHING * (time.monotonic() - started_at - self._mean_run_time_s)

    async def _take_slot(self, start_by: float | None) -> None:
        self._num_waiting += 1
        try:
            async with asyncio.timeout_at(start_by), self._room:
                await self._slots.acquire()
        finally:
            self._num_waiting -= 1
        self._num_running += 1

    def _unjudged(self, submission: Submission, status: VerdictStatus, entered_at: float) -> Verdict:
        return self._judge.unjudged(submission, status, queue_time_s=time.monotonic() - entered_at)
