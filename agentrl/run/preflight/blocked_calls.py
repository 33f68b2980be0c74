"""A time limit for user code that blocks all of Python, such as a C function that never returns and holds the GIL.

Deadlines of an event loop and signal handlers do not run meanwhile, so another process watches. It runs this file by its path,
without packages, so that it starts in milliseconds: only the standard library may be imported here.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

_MARGIN_S = 5.0
"""Time in which a deadline of this process's own ends the call first."""


@contextlib.contextmanager
def ended_if_blocked(what: str, *, limit_s: float, margin_s: float = _MARGIN_S) -> Iterator[None]:
    """End this process with an error if the block has not been left some time after its own deadline.

    Args:
        what: the call, for the message.
        limit_s: deadline that the call has anyway.
        margin_s: time beyond it.
    """
    after_s = limit_s + margin_s
    message = (
        f"error: {what}: Python has been blocked for {after_s:g} s, as by a C function that does not return. Bound that "
        "call, or make it in a process of its own"
    )
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(after_s), message]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watch:
        try:
            yield
        finally:
            watch.kill()


def _main(owner: int, after_s: float, message: str) -> None:
    owner_ended, _, _ = select.select([sys.stdin], [], [], after_s)
    if not owner_ended and os.getppid() == owner:
        os.write(sys.stderr.fileno(), f"{message}\n".encode())
        os.kill(owner, signal.SIGKILL)


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
