"""The same submission, sent again by the same client: judged once, answered as often as it is sent.

Clients send again what got no answer, after a broken connection for instance. A submission is the same if its client, its id
and its content are.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

from pydantic import TypeAdapter

from code_judge_server.queueing.pace import Pace
from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.schemas import Submission, Verdict, VerdictStatus

_SUBMISSION = TypeAdapter(Submission)
_VERDICT = TypeAdapter(Verdict)
_ENTRY_BYTES = 300
"""What an entry takes besides its JSON: the key, the table, the objects' heads."""
_OFF_LOOP_BYTES = 1024 * 1024
"""The key of what is larger is made in a thread."""
_NOT_KEPT = {VerdictStatus.INTERNAL_ERROR, VerdictStatus.QUEUE_TIMEOUT, VerdictStatus.CANCELLED}
"""They say nothing about the program: it is judged anew."""


def content_key(client: str, submission: Submission) -> bytes:
    """Return what the same submission of the same client has in common with it."""
    digest = hashlib.blake2b(f"{len(client)}:{client}".encode(), digest_size=20)
    digest.update(_SUBMISSION.dump_json(submission))  # without the deadline of a `SubmissionRequest`
    return digest.digest()


async def content_keys(client: str, submissions: Sequence[Submission]) -> list[bytes]:
    """Return the `content_key` of each, without keeping the event loop from others."""
    keys: list[bytes] = []
    pace = Pace()
    for submission in submissions:
        if _is_large(submission):
            keys.append(await asyncio.to_thread(content_key, client, submission))
        else:
            keys.append(content_key(client, submission))
            await pace.keep()
    return keys


def _is_large(submission: Submission) -> bool:
    texts = len(submission.code) + len(submission.stdin) + len(submission.expected_output or "")
    texts += len(submission.checker.code or "") + len(submission.interactor.code if submission.interactor else "")
    texts += sum(len(test.stdin) + len(test.expected_output or "") for test in submission.tests)
    return texts + sum(map(len, submission.files.values())) > _OFF_LOOP_BYTES


class Idempotency:
    """Finds the run, or the verdict, that a submission already has.

    Args:
        max_bytes: Size of all verdicts that are kept; the oldest go first.
        max_age_s: How long one is kept.
    """

    def __init__(self, *, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._in_flight: dict[bytes, QueuedRun] = {}
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        """JSON, which takes a sixth of the memory of the object, and when it is too old."""
        self._kept_bytes = 0

    def verdict(self, key: bytes) -> Verdict | None:
        """Return the verdict that is kept for a key."""
        self._forget_old()
        kept = self._kept.get(key)
        return None if kept is None else _VERDICT.validate_json(kept[0])

    def run(self, key: bytes) -> QueuedRun | None:
        """Return the run in flight for a key."""
        return self._in_flight.get(key)

    def started(self, run: QueuedRun) -> None:
        """Let those that are sent again share a run."""
        if run.key is not None:
            self._in_flight[run.key] = run

    def ended(self, run: QueuedRun, verdict: Verdict | None) -> None:
        """Keep the verdict of a run; None: it was given up."""
        if run.key is None or self._in_flight.get(run.key) is not run:
            return
        del self._in_flight[run.key]
        if verdict is not None and verdict.status not in _NOT_KEPT:
            self._keep(run.key, verdict)

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        content = _VERDICT.dump_json(verdict)
        size = len(content) + _ENTRY_BYTES
        if size > self._max_bytes:
            return
        self._kept[key] = (content, time.monotonic() + self._max_age_s)
        self._kept_bytes += size
        while self._kept_bytes > self._max_bytes:
            self._forget_first()
        self._forget_old()

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._kept and next(iter(self._kept.values()))[1] <= now:
            self._forget_first()

    def _forget_first(self) -> None:
        _, (content, _) = self._kept.popitem(last=False)
        self._kept_bytes -= len(content) + _ENTRY_BYTES
