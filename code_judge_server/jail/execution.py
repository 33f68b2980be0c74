"""Becoming a job's command where no warm interpreter stands in for it."""

import os
import signal
from typing import NoReturn

_CANNOT_EXECUTE = 126


def execute(argv: list[str]) -> NoReturn:
    """Execute a command with the signals as in a fresh process; if it cannot be, say so as a shell would."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execv(argv[0], argv)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\n".encode(errors="surrogateescape"))
    os._exit(_CANNOT_EXECUTE)
