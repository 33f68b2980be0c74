"""The message and exit code of a program's end, as by `PyErr_PrintEx` (Python/pythonrun.c)."""

import sys
from operator import methodcaller
from sys import __excepthook__ as display_exception

from code_judge_server.jail.python.hidden_frames import BUILTINS as __builtins__  # noqa: F401 - for the functions below
from code_judge_server.jail.python.hidden_frames import Stack

_LONG_BITS = 64
_STREAMS = ("stderr", "stdout")
flush = methodcaller("flush")
"""A C function, as a profiler would see one of ours."""


def report(error: BaseException | None, stack: Stack) -> int:
    """Print the exception that ended a program, if any, and return the exit code. The exception is no longer being handled, and
    its traceback has no frames of ours.
    """
    for name in _STREAMS:
        stream = sys.__dict__.get(name)
        if stream is not None:
            stack.call(flush, stream)
    if error is None:
        return 0
    if issubclass(type(error), SystemExit):
        return _exit_code(error, stack)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    hook = sys.__dict__.get("excepthook")
    if hook is None:
        _write("sys.excepthook is missing\n", stack)
        _display(error, stack)
        return 1
    failure = stack.call(hook, type(error), error, error.__traceback__).error
    if issubclass(type(failure), SystemExit):
        return _exit_code(failure, stack)
    if failure is not None:
        _write("Error in sys.excepthook:\n", stack)
        _display(failure, stack)
        _write("\nOriginal exception was:\n", stack)
        _display(error, stack)
    return 1


def _display(error: BaseException, stack: Stack) -> None:
    stack.call(display_exception, type(error), error, error.__traceback__)


def _exit_code(error: object, stack: Stack) -> int:
    code = stack.call(getattr, error, "code").value
    if code is None:
        return 0
    if issubclass(type(code), int):
        value = int.__index__(code)  # pyright: ignore[reportArgumentType] - it is one
        return value & 0xFF if value.bit_length() < _LONG_BITS else 0xFF
    text = stack.call(str, code).value
    if text is not None:
        _write(text, stack)
    _write("\n", stack)
    return 1


def _write(text: object, stack: Stack) -> None:
    stream = sys.__dict__.get("stderr")
    if stream is not None:
        stack.call(methodcaller("write", text), stream)
