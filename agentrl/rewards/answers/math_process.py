"""The process behind `EquivalencePool`, which imports everything once and forks a child for each comparison.

python -m agentrl.rewards.answers.math_process FILE_DESCRIPTOR

It reads comparisons as JSON lines from a socket and writes an outcome for each. A kernel timer kills a child after its CPU
time, even inside C code.
"""

import contextlib
import ctypes
import json
import logging
import os
import resource
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
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
_MAX_LINE_BYTES = 2**20


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    pid: int
    comparison_id: int


class _Server:
    """Forks a child for each line it reads, and writes a line when the child has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._unread = b""

    def run(self) -> None:
        """Serve until the other end closes."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._connection:
                    self._report(key.fd, key.data)
                elif not self._read():
                    return

    def _read(self) -> bool:
        received = self._connection.recv(_MAX_LINE_BYTES)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._fork(json.loads(line))
        return bool(received)

    def _fork(self, comparison: dict[str, Any]) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _compare(comparison)
        os.close(theirs)  # the child has the only other end: its exit closes it
        self._selector.register(ours, selectors.EVENT_READ, _Child(pid=pid, comparison_id=comparison["id"]))

    def _report(self, descriptor: int, child: _Child) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(child.pid, 0)
        line = json.dumps({"id": child.comparison_id, "outcome": Outcome.of(status)})
        self._connection.sendall(line.encode() + b"\n")


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
    # A comparison that hangs never sees the socket close.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(descriptor: int) -> None:
    """Serve until the other end closes; the first line is `ready`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    for pair in _WARM_UP:  # children inherit the caches of the parser
        _equal(*pair)
    with socket.socket(fileno=descriptor) as connection:
        connection.sendall(b"ready\n")
        _Server(connection).run()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
