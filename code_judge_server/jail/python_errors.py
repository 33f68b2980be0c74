"""Say what ended a program, and with what exit code, as `PyErr_PrintEx` does (Python/pythonrun.c)."""

import ctypes
import sys
from collections.abc import Callable
from operator import call

from code_judge_server.jail.hidden_frames import Stack

_LONG_BITS = 64


def report(error: BaseException | None, stack: Stack) -> int:
    """Print the exception that ended a program, if one did, and return the exit code.

    Args:
        error: Without frames of ours in its traceback, and not being handled any more.
        stack: That of this thread.
    """
    frame = stack.current_frame()
    for name in ("stderr", "stdout"):
        _call_hidden(frame, lambda name=name: sys.__dict__[name].flush())
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exit_code(error, frame)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    hook = sys.__dict__.get("excepthook")
    if hook is None:
        _write("sys.excepthook is missing\n", frame)
        _display(error)
        return 1
    failure = _call_hidden(frame, hook, type(error), error, error.__traceback__)
    if isinstance(failure, SystemExit):
        return _exit_code(failure, frame)
    if failure is not None:
        _write("Error in sys.excepthook:\n", frame)
        _display(failure)
        _write("\nOriginal exception was:\n", frame)
        _display(error)
    return 1


def _call_hidden(frame: ctypes.c_size_t, function: Callable[..., object], *arguments: object) -> BaseException | None:
    """Call what may be a program's own, on an empty stack; return what it raised."""
    try:
        frame.value = 0
        call(function, *arguments)
    except BaseException as failure:  # noqa: BLE001 - a program may raise what it likes
        failure.__traceback__ = failure.__traceback__ and failure.__traceback__.tb_next
        return failure
    return None


def _display(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)


def _exit_code(error: SystemExit, frame: ctypes.c_size_t) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if code.bit_length() < _LONG_BITS else 0xFF
    _call_hidden(frame, lambda: _write(f"{code}", frame))
    _write("\n", frame)
    return 1


def _write(text: str, frame: ctypes.c_size_t) -> None:
    stream = sys.__dict__.get("stderr")
    if stream is not None:
        _call_hidden(frame, stream.write, text)
