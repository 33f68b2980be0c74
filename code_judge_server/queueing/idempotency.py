"""Idempotent submissions: one that the same client sends again is judged once, and answered each time.

Clients send a submission again after a broken connection, for example. Two submissions are the same if client, id and content
are equal.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

from pydantic import TypeAdapter

from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.schemas import Submission, Verdict, VerdictStatus

_SUBMISSION = TypeAdapter(Submission)
_VERDICT = TypeAdapter(Verdict)
_ENTRY_BYTES = 300
"""Memory of an entry besides its JSON: the key, the table, the object headers."""
_OFF_LOOP_BYTES = 1024 * 1024
"""Keys of larger submissions are computed in a thread."""
_KEYS_AT_ONCE = 16
_NOT_KEPT = {VerdictStatus.INTERNAL_ERROR, VerdictStatus.QUEUE_TIMEOUT, VerdictStatus.CANCELLED}
"""Verdicts that say nothing about the program, so it is judged again."""


def content_key(client: str, submission: Submission) -> bytes:
    """Return the key that a submission of a client shares with its repetitions."""
    digest = hashlib.blake2b(f"{len(client)}:{client}".encode(), digest_size=20)
    digest.update(_SUBMISSION.dump_json(submission))  # without the deadline of a `SubmissionRequest`
    return digest.digest()


async def content_keys(client: str, submissions: Sequence[Submission]) -> list[bytes]:
    """Return the `content_key` of each submission without blocking the event loop."""
    keys: list[bytes] = []
    for number, submission in enumerate(submissions, start=1):
        if _is_large(submission):
            keys.append(await asyncio.to_thread(content_key, client, submission))
        else:
            keys.append(content_key(client, submission))
        if number % _KEYS_AT_ONCE == 0:
            await asyncio.sleep(0)  # lets other requests run
    return keys


def _is_large(submission: Submission) -> bool:
    texts = len(submission.code) + len(submission.stdin) + len(submission.expected_output or "")
    texts += len(submission.checker.code or "") + len(submission.interactor.code if submission.interactor else "")
    texts += sum(len(test.stdin) + len(test.expected_output or "") for test in submission.tests)
    return texts + sum(map(len, submission.files.values())) > _OFF_LOOP_BYTES


class Idempotency:
    """Finds the run or the verdict of a repeated submission; verdicts are kept for `max_age_s`, the oldest dropped first."""

    def __init__(self, *, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._in_flight: dict[bytes, QueuedRun] = {}
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        """JSON (a sixth of the memory of the object) and time of expiry."""
        self._kept_bytes = 0

    def verdict(self, key: bytes) -> Verdict | None:
        """Return the verdict kept for a key, if any."""
        self._forget_old()
        kept = self._kept.get(key)
        return None if kept is None else _VERDICT.validate_json(kept[0])

    def run(self, key: bytes) -> QueuedRun | None:
        """Return the running or waiting run for a key, if any."""
        return self._in_flight.get(key)

    def started(self, run: QueuedRun) -> None:
        """Let repetitions share a run."""
        if run.key is not None:
            self._in_flight[run.key] = run

    def ended(self, run: QueuedRun, verdict: Verdict | None) -> None:
        """Keep the verdict of a run; None: the run was cancelled."""
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
