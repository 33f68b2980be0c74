"""The start of a job's command: in this warm interpreter, or by `execve`."""

import os
import signal
from typing import NoReturn

from code_judge_server.jail.python import python_main

_CANNOT_EXECUTE = 126


def run(argv: list[str], *, interpret: bool) -> NoReturn:
    """Become the command `argv`, or, to `interpret` `python main.py ...`, run its script in this interpreter."""
    if interpret:
        python_main.run(argv)
    execute(argv)


def encode(argv: list[str], *, interpret: bool) -> bytes:
    """Return the input of `run_encoded`; an argument of a command cannot hold a null."""
    return "\0".join(("1" if interpret else "", *argv)).encode("utf-8", "surrogatepass")


def run_encoded(command: bytes) -> NoReturn:
    """Become the command that `encode` was given."""
    interpret, *argv = command.decode("utf-8", "surrogatepass").split("\0")
    run(argv, interpret=bool(interpret))


def execute(argv: list[str]) -> NoReturn:
    """Execute a command with the signal handlers of a fresh process; on failure print a message as a shell would."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execv(argv[0], argv)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\n".encode(errors="surrogateescape"))
    os._exit(_CANNOT_EXECUTE)
