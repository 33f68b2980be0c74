"""The process behind `EquivalencePool`: reads pairs of answers as JSON lines from a socket, and writes `true` or `false`.

python -m agentrl.rewards.math_process FILE_DESCRIPTOR
"""

import ctypes
import json
import logging
import resource
import signal
import socket
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_MEMORY_LIMIT_BYTES = 2 * 1024**3


def _main(descriptor: int) -> None:
    """Answer until the other end closes; the first line says that everything is imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A comparison that hangs never sees the socket close.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    from math_verify import parse, verify  # sympy: only this process pays for it

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def boxed(text: str) -> Any:
        # Its own time limits are off: they are signals, which a hang in C code never sees, and the pool has one.
        return parse(f"\\boxed{{{text}}}", parsing_timeout=0)

    with socket.socket(fileno=descriptor) as connection, connection.makefile("rw", encoding="utf-8") as lines:
        print("ready", file=lines, flush=True)
        for line in lines:
            reference, answer = json.loads(line)
            equal = bool(verify(boxed(reference), boxed(answer), timeout_seconds=0))
            print(json.dumps(equal), file=lines, flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
