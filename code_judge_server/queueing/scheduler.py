"""Assigns runs to slots, by fair shares between clients, and removes runs that nobody waits for."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from code_judge_server.judging.judge import Judge
from code_judge_server.queueing.fair_queue import FairQueue, RunTimes
from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.queueing.shared_capacity import SharedCapacity
from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Verdict

logger = logging.getLogger(__name__)

_SLEEPER_POLL_S = 0.05


class JudgeFailedError(Exception):
    """The judge raised an error, or was cancelled from elsewhere, instead of giving a verdict: a bug."""


class Scheduler:
    """Judges `num_slots` runs at once, and up to `total_slots` while programs sleep and leave their cores to others.

    Each run that is being judged has a task, waiting runs have none. A run of many test cases yields between them: a running
    submission delays other clients by one program, not by a thousand. `on_end` is called once for each run that entered, with
    its verdict, or None if it was cancelled. The callers of `enter` must keep to `capacity`.
    """

    def __init__(
        self,
        judge: Judge,
        executor: Executor,
        *,
        num_slots: int,
        total_slots: int,
        capacity: int,
        on_end: Callable[[QueuedRun, Verdict | None], None],
    ) -> None:
        self.num_slots = num_slots
        self.num_running = 0
        self.room = SharedCapacity(capacity)
        self._total_slots = total_slots
        self._judge = judge
        self._executor = executor
        self._on_end = on_end
        self._run_times = RunTimes()
        self._waiting = FairQueue(self._run_times)
        self._running_units: Counter[str] = Counter()
        self._num_running_of: Counter[str] = Counter()
        """Running runs per client."""
        self._num_giving_way = 0
        self._sleeper_poll: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Runs that wait for a slot."""
        return len(self._waiting)

    def enter(self, runs: Iterable[QueuedRun]) -> None:
        """Let runs wait for a slot, which they may get at once."""
        for run in runs:
            self.room.take(run.client, 1)
            self._waiting.push(run)
        self._fill_slots()

    def give_up(self, run: QueuedRun) -> None:
        """Remove a run that nobody waits for; if it is being judged, kill it."""
        if run.task is not None:
            run.task.cancel()
            return
        self._waiting.remove(run)
        self.room.give_back(run.client, 1)
        self._on_end(run, None)

    def estimated_wait_s(self, client: str) -> float:
        """Return the expected wait for a slot of a run that a client enters now, by past run times."""
        if self.num_running < self.num_slots and not self._waiting:
            return 0.0
        return self._wait_s(self._waiting.work_ahead_s(client))

    def longest_wait_s(self) -> float:
        """Return an upper bound of `estimated_wait_s` over all clients; constant time for any number of clients."""
        return self._wait_s(self._waiting.all_work_s())

    def _wait_s(self, work_ahead_s: float) -> float:
        half_done_s = 0.5 * self._run_times.backlog_s(self._running_units)
        return (half_done_s + work_ahead_s) / self.num_slots

    def _fill_slots(self) -> None:
        while self._waiting and self._has_slot(self._waiting.next_client()):
            self._start(self._waiting.pop())
        if self._waiting and self._sleeper_poll is None and self.num_slots < self._total_slots:
            self._sleeper_poll = asyncio.get_running_loop().call_later(_SLEEPER_POLL_S, self._look_for_sleepers)

    def _has_slot(self, client: str) -> bool:
        if self.num_running < self.num_slots:
            return True
        if self._num_running_of[client] >= self._total_slots - 1:
            return False  # the last slot is for other clients, which must not wait for the sleepers of one client
        return (
            self.num_running < self._total_slots
            and self.num_running - self._executor.load().num_asleep < self.num_slots
        )

    def _look_for_sleepers(self) -> None:
        self._sleeper_poll = None
        self._fill_slots()

    def _start(self, run: QueuedRun) -> None:
        self.num_running += 1
        self._num_running_of[run.client] += 1
        self._running_units[run.kind] += run.num_units
        self.room.give_back(run.client, 1)
        run.turn_began_at = time.monotonic()
        if run.next_turn is not None:
            self._resume(run, run.next_turn)
            return
        run.started_at = run.turn_began_at
        waited_s = run.started_at - run.entered_at
        run.task = asyncio.create_task(
            self._judge.judge(
                run.submission, queue_time_s=waited_s, spent=run.spent, between_tests=partial(self._yield_slot, run)
            )
            if run.work is None
            else run.work(waited_s, run.spent)
        )
        run.task.add_done_callback(partial(self._ended, run))

    async def _yield_slot(self, run: QueuedRun) -> None:
        """Let a run yield between two programs, and wait for its client's next turn, if another client waits.

        A run that yields holds its program and its results, so at most as many do as there are slots.
        """
        if not self._waiting or self._waiting.next_client() == run.client or self._num_giving_way >= self._total_slots:
            return
        self._leave_slot(run)
        self._num_giving_way += 1
        run.next_turn = asyncio.get_running_loop().create_future()
        next_turn = run.next_turn
        self.room.take(run.client, 1)
        self._waiting.push(run, first=True)
        self._fill_slots()
        await next_turn

    def _resume(self, run: QueuedRun, next_turn: asyncio.Future[None]) -> None:
        self._num_giving_way -= 1
        run.next_turn = None
        if not next_turn.done():  # otherwise it was cancelled a moment ago, and is about to end
            next_turn.set_result(None)

    def _leave_slot(self, run: QueuedRun) -> None:
        turn_s = time.monotonic() - run.turn_began_at
        run.slot_time_s += turn_s
        self.num_running -= 1
        self._num_running_of[run.client] -= 1
        if not self._num_running_of[run.client]:
            del self._num_running_of[run.client]
        self._running_units[run.kind] -= run.num_units
        self._waiting.ended(run, turn_s)

    def _ended(self, run: QueuedRun, task: asyncio.Task[Verdict]) -> None:
        if run.next_turn is None:
            self._leave_slot(run)
        else:  # it was cancelled while it had no slot
            self._num_giving_way -= 1
            self._waiting.remove(run)
            self.room.give_back(run.client, 1)
        if not task.cancelled() and task.exception() is None:
            self._run_times.learn(run, run.slot_time_s)
            self._on_end(run, task.result())
        else:
            self._on_end(run, None)
            self._fail(run, None if task.cancelled() else task.exception())
        self._fill_slots()

    def _fail(self, run: QueuedRun, error: BaseException | None) -> None:
        if not run.waiters:
            return  # it was cancelled
        logger.error("submission %r: the judge gave no verdict", run.submission.id, exc_info=error)
        failure = JudgeFailedError(f"submission `{run.submission.id}`: the judge failed")
        failure.__cause__ = error
        for waiter in run.waiters:
            waiter.fail(failure)
