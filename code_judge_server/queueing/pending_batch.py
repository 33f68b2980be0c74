"""The verdicts that one request waits for."""

import asyncio
from collections.abc import Callable
from operator import itemgetter

from code_judge_server.metrics import Metrics
from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.queueing.shared_capacity import SharedCapacity
from code_judge_server.schemas import RunResult, Verdict

_VERDICT_BYTES = 4400


_RESULT_BYTES = 1400
"""Bytes of a verdict, or of one test's result, without outputs: measured with `tracemalloc`."""


def held_bytes(verdict: Verdict) -> int:
    """Return the approximate memory of a verdict in bytes."""
    size = _VERDICT_BYTES + len(verdict.stdout) + len(verdict.stderr)
    for result in verdict.tests:
        size += _RESULT_BYTES + len(result.stdout) + len(result.stderr)
    for content in verdict.files.values():
        size += len(content)
    return size


def without_outputs(verdict: Verdict) -> Verdict:
    """Return the verdict without the outputs and files of its program, flagged as truncated."""
    return verdict.model_copy(
        update=_emptied(verdict)
        | {"files": {}, "files_truncated": verdict.files_truncated or bool(verdict.files)}
        | {"tests": [test.model_copy(update=_emptied(test)) for test in verdict.tests]}
    )


def _emptied(result: RunResult) -> dict[str, object]:
    return {
        "stdout": "",
        "stderr": "",
        "stdout_truncated": result.stdout_truncated or bool(result.stdout),
        "stderr_truncated": result.stderr_truncated or bool(result.stderr),
    }


Finished = tuple[int, Verdict]
"""Index of a submission in its request, and its verdict."""


class PendingBatch:
    """Collects the verdicts of one request; its owner must `close` it, which cancels the submissions without a verdict.

    `leave` tells the queue that this batch no longer waits for a run. A verdict that does not fit into `reply_memory` loses its
    outputs.
    """

    def __init__(
        self,
        client: str,
        *,
        leave: Callable[[QueuedRun, "PendingBatch"], None],
        reply_memory: SharedCapacity,
        metrics: Metrics,
    ) -> None:
        self._client = client
        self._leave = leave
        self._reply_memory = reply_memory
        self._metrics = metrics
        self._finished_bytes = 0
        self._handed_out_bytes = 0
        self._open: dict[QueuedRun, int] = {}
        self._finished: list[Finished] = []
        self._error: BaseException | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._all_wanted = False
        self._timers: list[asyncio.TimerHandle] = []

    def wait_for(self, run: QueuedRun, index: int) -> None:
        """Wait for the verdict of a run too."""
        self._open[run] = index
        run.waiters.append(self)

    def give(self, run: QueuedRun, verdict: Verdict) -> None:
        """Add the verdict of a run."""
        self.give_at(self._open.pop(run), verdict)

    def give_at(self, index: int, verdict: Verdict) -> None:
        """Add the verdict of the submission with this index."""
        size = held_bytes(verdict)
        if not self._reply_memory.fits(self._client, size):
            verdict = without_outputs(verdict)
            size = held_bytes(verdict)
        self._reply_memory.take(self._client, size)
        self._metrics.count_verdict(verdict)
        self._finished_bytes += size
        self._finished.append((index, verdict))
        if not self._all_wanted or not self._open:
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Raise this error in the reader of the verdicts."""
        self._error = error
        self._wake()

    def call_at(self, when: float, expire: Callable[[list[QueuedRun]], None]) -> None:
        """Call `expire`, at a time of the loop's clock, with the runs that have no verdict by then."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_at(when, lambda: expire(list(self._open))))

    async def next_finished(self) -> list[Finished]:
        """Return the verdicts since the last call, as soon as there is one; an empty list after the last."""
        self._release()
        while not self._finished and self._open:
            await self._change()
        finished, self._finished = self._finished, []
        self._handed_out_bytes, self._finished_bytes = self._finished_bytes, 0
        return finished

    async def all(self) -> list[Verdict]:
        """Return all verdicts, in the order of the submissions, after the last has come."""
        self._all_wanted = True
        while self._open:
            await self._change()
        return [verdict for _, verdict in sorted(self._finished, key=itemgetter(0))]

    def close(self) -> None:
        """Cancel submissions without a verdict, and release the room of the rest."""
        for timer in self._timers:
            timer.cancel()
        while self._open:
            run, _ = self._open.popitem()
            self._leave(run, self)
        self._finished = []
        self._release()
        self._reply_memory.give_back(self._client, self._finished_bytes)
        self._finished_bytes = 0

    def _release(self) -> None:
        # The last result of `next_finished` has been sent by now.
        self._reply_memory.give_back(self._client, self._handed_out_bytes)
        self._handed_out_bytes = 0

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._wakeup = asyncio.get_running_loop().create_future()
        await self._wakeup
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
