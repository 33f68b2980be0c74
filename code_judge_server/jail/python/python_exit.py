"""The end of a program as by the interpreter: join threads, call exit functions, flush streams, call finalizers; but quickly.

`Py_FinalizeEx` takes tens of milliseconds once sympy is loaded, nearly all of it to free memory that the kernel frees anyway.
So it runs only if an object is left whose end is visible: an object with a `__del__`, an open file, a suspended generator with
a `finally`, a coroutine never awaited, a weak reference with a callback of the program. One difference remains: several objects
that only the garbage collector frees at the end may be freed in another order.
"""

import ctypes
import io
import sys
from _signal import SIG_DFL, SIGINT, raise_signal  # pyright: ignore[reportMissingImports]
from _signal import signal as set_signal_handler  # pyright: ignore[reportMissingImports]
from atexit import _ncallbacks as count_exit_functions
from atexit import _run_exitfuncs as run_exit_functions
from gc import get_objects
from io import IOBase
from os import _exit
from sys import stdlib_module_names
from types import CoroutineType, GeneratorType, ModuleType
from typing import NoReturn
from weakref import ref

from code_judge_server.jail.python.hidden_frames import BUILTINS as __builtins__  # noqa: F401 - for the functions below
from code_judge_server.jail.python.hidden_frames import Stack, python_api
from code_judge_server.jail.python.python_errors import flush

_UNDISTINGUISHED = (type, ref, GeneratorType, CoroutineType)
"""Types of which some objects end visibly, and others do not."""

_names_of = type.__dict__["__dict__"].__get__
_lineage_of = type.__dict__["__mro__"].__get__
_modules = sys.modules
_flush_c = python_api.fflush
_flush_c.argtypes = [ctypes.c_void_p]
_finalize_and_exit = python_api.Py_Exit
_finalize_and_exit.argtypes = [ctypes.c_int]

_harmless_types: set[type] = set()
_modules_before: dict[str, object] = {}
"""Modules of the warm interpreter."""
_unraisable_types: list[type] = []
"""Type of the argument of `sys.unraisablehook`, which no module exports."""


def prepare() -> None:
    """Find the types whose objects end invisibly, among those that exist before the fork."""
    _find_unraisable_type()
    _modules_before.update(_modules)
    candidates = {type(item) for item in get_objects()} | {io.StringIO, io.BytesIO}
    # A lookup, not `_has_finalizer`: it gives each type its version tag, otherwise every child would write it to its own page.
    _harmless_types.update(
        item for item in candidates if not issubclass(item, _UNDISTINGUISHED) and not hasattr(item, "__del__")
    )
    _harmless_types.update((io.StringIO, io.BytesIO))


def finish(exit_code: int, *, interrupted: bool, stack: Stack) -> NoReturn:
    """End this process.

    Args:
        exit_code: Exit code, as `exit` takes it.
        interrupted: A KeyboardInterrupt was not caught: the process dies of SIGINT, as a shell expects.
        stack: The stack of this thread.
    """
    _join_threads(stack)
    if count_exit_functions():
        stack.call_traced(run_exit_functions)
    flushed = _flush("stdout", stack) and _flush("stderr", stack)
    if interrupted:
        set_signal_handler(SIGINT, SIG_DFL)
        raise_signal(SIGINT)
    if not flushed or _end_is_visible():
        stack.run(_finalize_and_exit, exit_code)
    _flush_c(None)  # output of the program through C
    _exit(exit_code & 0xFF)


def _find_unraisable_type() -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError

    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: _unraisable_types.append(type(unraisable))
    Failing()
    sys.unraisablehook = before


def rehearse(stack: Stack) -> None:
    """Run the parts of `finish` that end nothing."""
    _flush("stdout", stack)
    _flush("stderr", stack)
    _end_is_visible()


def _join_threads(stack: Stack) -> None:
    threading = _modules.get("threading")
    if threading is None:
        return
    # A program that did not import it, but whose interpreter did, must not see the call.
    call = stack.call_untraced if threading is _modules_before.get("threading") else stack.call
    if type(threading) is ModuleType and "_shutdown" in threading.__dict__:
        error = call(threading.__dict__["_shutdown"]).error
    else:
        shutdown = stack.call(getattr, threading, "_shutdown")
        error = shutdown.error or call(shutdown.value).error  # pyright: ignore[reportArgumentType] - else it raises
    if error is not None:
        unraisable = _unraisable_types[0]((type(error), error, error.__traceback__, None, threading))
        stack.call(sys.__dict__.get("unraisablehook"), unraisable)  # pyright: ignore[reportArgumentType]


def _flush(name: str, stack: Stack) -> bool:
    """Flush a standard stream; return False if the interpreter must do it, and report the error."""
    stream = sys.__dict__.get(name)
    if stream is None or stack.call(getattr, stream, "closed", False).value:
        return True
    return stack.call(flush, stream).error is None


def _end_is_visible() -> bool:
    """Return whether freeing the program's objects (all that are not frozen) could print or write anything."""
    try:
        objects = get_objects()
        kinds = set(map(type, objects)) - _harmless_types
        suspicious = {item for item in kinds if issubclass(item, _UNDISTINGUISHED) or _has_finalizer(item)}
        return bool(suspicious) and any(_ends_visibly(item, type(item)) for item in objects if type(item) in suspicious)
    except Exception:  # noqa: BLE001 - raised by a metaclass of the program
        return True


def _has_finalizer(kind: type) -> bool:
    return any("__del__" in _names_of(base) for base in _lineage_of(kind))


def _ends_visibly(item: object, kind: type) -> bool:
    if issubclass(kind, type):
        names = _names_of(item)
        return "__del__" in names and names.get("__module__", "").partition(".")[0] not in stdlib_module_names
    if kind is GeneratorType:
        return item.gi_frame is not None and item.gi_frame.f_lasti >= 0 and bool(item.gi_code.co_exceptiontable)  # pyright: ignore
    if kind is CoroutineType:
        return item.cr_frame is not None  # pyright: ignore
    if issubclass(kind, ref):
        return getattr(item.__callback__, "__module__", None) == "__main__"  # pyright: ignore
    return not (issubclass(kind, IOBase) and item.closed)  # pyright: ignore
