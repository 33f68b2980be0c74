"""End a program as the interpreter would: threads joined, exit functions run, streams flushed, finalizers called; but quickly.

`Py_FinalizeEx` takes tens of milliseconds once sympy is loaded, nearly all of it to free what the kernel frees anyway. So it
runs only if something is left whose end a person could see: an object with a `__del__`, an open file, a suspended generator
with a `finally`, a coroutine never awaited, a weak reference with a callback of the program's. One difference is left: of
several objects that only the garbage collector frees at the end, another may be the first.
"""

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import types
import weakref
from operator import call
from typing import NoReturn

from code_judge_server.jail.hidden_frames import Stack

_UNDISTINGUISHED = (type, weakref.ref, types.GeneratorType, types.CoroutineType)
"""Types of which some objects end visibly, and others not."""

_harmless_types: set[type] = set()


def prepare() -> None:
    """Find the types whose objects end unseen, among those that there are before the fork."""
    candidates = {type(it) for it in gc.get_objects()} | {io.StringIO, io.BytesIO}
    _harmless_types.update(
        it for it in candidates if not issubclass(it, _UNDISTINGUISHED) and not hasattr(it, "__del__")
    )
    _harmless_types.update((io.StringIO, io.BytesIO))


def finish(exit_code: int, *, interrupted: bool, stack: Stack) -> NoReturn:
    """End this process.

    Args:
        exit_code: For the parent, as `exit` takes it.
        interrupted: A KeyboardInterrupt that nothing caught: the process dies of SIGINT, as a shell expects.
        stack: That of this thread.
    """
    frame = stack.current_frame()
    _join_threads(frame)
    frame.value = 0
    atexit._run_exitfuncs()
    flushed = _flush("stdout", frame) and _flush("stderr", frame)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    if not flushed or _end_is_visible():
        frame.value = 0
        ctypes.pythonapi.Py_Exit(exit_code)
    ctypes.pythonapi.fflush(None)  # what the program printed through C
    os._exit(exit_code & 0xFF)


def rehearse(stack: Stack) -> None:
    """Do of `finish` what ends nothing."""
    frame = stack.current_frame()
    _flush("stdout", frame)
    _flush("stderr", frame)
    _end_is_visible()


def _join_threads(frame: ctypes.c_size_t) -> None:
    threading = sys.modules.get("threading")
    if threading is None:
        return
    try:
        frame.value = 0
        call(threading._shutdown)
    except BaseException as error:  # noqa: BLE001 - whatever a program's thread or signal handler raises
        traceback = error.__traceback__ and error.__traceback__.tb_next
        unraisable = (type(error), error, traceback, None, threading)
    else:
        return
    frame.value = 0
    call(sys.unraisablehook, sys.UnraisableHookArgs(unraisable))  # pyright: ignore - not constructible for pyright


def _flush(name: str, frame: ctypes.c_size_t) -> bool:
    """Flush a standard stream; return False if the interpreter has to do it, and say what failed."""
    stream = sys.__dict__.get(name)
    if stream is None:
        return True
    try:
        frame.value = 0
        if not call(getattr, stream, "closed", False):
            call(stream.flush)
    except BaseException:  # noqa: BLE001 - the stream may be the program's own
        return False
    return True


def _end_is_visible() -> bool:
    """Return whether freeing what the program made (all that is not frozen) could print or write anything."""
    made = gc.get_objects()
    kinds = set(map(type, made)) - _harmless_types
    suspicious = tuple(it for it in kinds if hasattr(it, "__del__") or issubclass(it, _UNDISTINGUISHED))
    return bool(suspicious) and any(_ends_visibly(it) for it in made if isinstance(it, suspicious))


def _ends_visibly(it: object) -> bool:
    if isinstance(it, type):
        return "__del__" in it.__dict__ and it.__module__.partition(".")[0] not in sys.stdlib_module_names
    if isinstance(it, types.GeneratorType):
        return it.gi_frame is not None and it.gi_frame.f_lasti >= 0 and bool(it.gi_code.co_exceptiontable)
    if isinstance(it, types.CoroutineType):
        return it.cr_frame is not None
    if isinstance(it, weakref.ref):
        return getattr(it.__callback__, "__module__", None) == "__main__"
    return not (isinstance(it, io.IOBase) and it.closed)
