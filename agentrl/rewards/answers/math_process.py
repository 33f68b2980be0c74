"""The process behind `EquivalencePool`, which imports everything once and forks a child for each comparison.

It reads comparisons as JSON lines from standard input and writes an outcome for each. A kernel timer kills a child after its
CPU time, even inside C code.
"""

import contextlib
import ctypes
import json
import logging
import os
import resource
import selectors
import signal
from enum import StrEnum
from typing import Any

from agentrl.rewards.answers.comparison import equal_answers

_PR_SET_PDEATHSIG = 1
_MEMORY_LIMIT_BYTES = 1024**3
_WALL_PER_CPU_SECOND = 20.0
"""Wall clock limit per second of CPU time, for a child that waits, as on a swapping machine."""
_WARM_UP = [
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("x^2 - 1", "(x - 1)(x + 1)"),
    ("x > 3", r"(3, \infty)"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}"),
]
_TIMERS = {signal.SIGPROF, signal.SIGALRM}
_MAX_BYTES = 2**20


class Outcome(StrEnum):
    """Result of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    TIMEOUT = "timeout"
    """It exceeded its limit."""
    DIED = "died"
    """Its process crashed, as without memory, or was killed."""

    @classmethod
    def of(cls, wait_status: int) -> "Outcome":
        """Return the outcome for the exit status of a child."""
        if os.WIFEXITED(wait_status):
            return {0: cls.EQUAL, 1: cls.DIFFERENT}.get(os.WEXITSTATUS(wait_status), cls.DIED)
        return cls.TIMEOUT if os.WTERMSIG(wait_status) in _TIMERS else cls.DIED


def _serve(replies: int) -> None:
    """Fork a child for each comparison that arrives, and write a line to `replies` when it has ended."""
    selector, unread = selectors.DefaultSelector(), b""
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd != 0:
                pid, number = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                outcome = Outcome.of(os.waitpid(pid, 0)[1])
                os.write(replies, json.dumps({"id": number, "outcome": outcome}).encode() + b"\n")
                continue
            if not (received := os.read(0, _MAX_BYTES)):
                return
            *lines, unread = (unread + received).split(b"\n")
            for comparison in map(json.loads, lines):
                ours, theirs = os.pipe()
                if (pid := os.fork()) == 0:
                    _compare(comparison)
                os.close(theirs)  # the child has the only other end: its exit closes it
                selector.register(ours, selectors.EVENT_READ, (pid, comparison["id"]))


def _compare(comparison: dict[str, Any]) -> None:
    """Compare in this child, and exit with 0 for equal, 1 for different."""
    _die_with_parent()
    signal.setitimer(signal.ITIMER_PROF, comparison["cpu_s"])
    signal.setitimer(signal.ITIMER_REAL, comparison["cpu_s"] * _WALL_PER_CPU_SECOND)
    status = 2
    with contextlib.suppress(BaseException):
        status = int(not _equal(comparison["reference"], comparison["answer"]))
    os._exit(status)


def _equal(reference: str, answer: str) -> bool:
    from agentrl.rewards.answers.symbolic import equal_values  # sympy: only this process pays for it

    return equal_answers(reference, answer, equal_values)


def _die_with_parent() -> None:
    # A comparison that hangs never sees the input close.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    replies = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no reply
    for pair in _WARM_UP:  # children inherit the caches of the parser
        _equal(*pair)
    _serve(replies)


if __name__ == "__main__":
    _main()
