"""An empty stack for a program, although the interpreter it runs in has frames of its own below.

Without it `traceback.print_stack`, `warnings.warn(stacklevel=2)`, `inspect.stack` and the depth of a `RecursionError` would
tell a program of a zygote from `python main.py`. CPython has no function for this, so two fields of its thread state are
written, once `measure` has checked that they are where the headers of this version say (`Include/cpython/pystate.h`).
Elsewhere the frames stay visible.

A program may leave a profiler or tracer on. It must not see frames of this package, least of all while they are hidden: tracing
is suspended except for the program's own code. The code around that runs in C.
"""

import builtins
import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import call
from sys import getprofile, gettrace
from typing import Any
from weakref import ref

BUILTINS = dict(vars(builtins))
"""The `__builtins__` of the modules that end a program; a program may replace the ones it sees."""
__builtins__ = BUILTINS

python_api = ctypes.PyDLL(None)
"""A private handle in place of `ctypes.pythonapi`, whose functions programs may declare differently."""
_call_object = python_api.PyObject_CallObject
_call_object.argtypes = [ctypes.py_object, ctypes.py_object]
_call_object.restype = ctypes.py_object
_suspend_tracing = python_api.PyThreadState_EnterTracing
_resume_tracing = python_api.PyThreadState_LeaveTracing
_resume_tracing.argtypes = [ctypes.c_size_t]
_suspend_tracing.argtypes = [ctypes.c_size_t, ctypes.py_object]  # the second is a weak reference, and ignored
for _function in (_suspend_tracing, _resume_tracing):
    _function.restype = None
_word_at = ctypes.c_size_t.from_address

_monitoring = getattr(sys, "monitoring", None)
_TOOL_IDS = range(6)
_DEPTH_OF_CALL_TO_C = 2 if sys.version_info < (3, 12) else 0
"""Part of the recursion limit used by a call of a `partial` of a function of `python_api`."""
_WORD_BYTES = 8
_INT_BYTES = 4

_LAYOUTS = {
    # version: (recursion_remaining, holder of the current frame, offset of the frame in it or None, of the code in a frame)
    (3, 11): (32, 56, 8, 32),
    (3, 12): (28, 56, 0, 0),
    (3, 13): (44, 72, None, 0),
}
"""Offsets in bytes within `PyThreadState`, `_PyCFrame` and `_PyInterpreterFrame`, on 64-bit machines."""


@dataclass(slots=True, kw_only=True)
class Reply:
    """Result of a call."""

    value: Any = None
    error: BaseException | None = None
    """The exception raised by the call, without our frames in its traceback."""


class Stack:
    """The stack of the calling thread, created by `measure`."""

    __slots__ = ("_frame_offset", "_holder", "_is_suspended", "_remaining", "_state")

    def __init__(
        self, state: int, *, remaining: ctypes.c_int, holder: ctypes.c_size_t, frame_offset: int | None
    ) -> None:
        self._state = state
        self._remaining = remaining
        self._holder = holder
        self._frame_offset = frame_offset
        self._is_suspended = False

    def resume_tracing(self) -> None:
        """Let profilers and tracers see this thread, if none is on; `run` hides the thread again at its end."""
        if self._is_suspended:
            _resume_tracing(self._state)
            self._is_suspended = False

    def call(self, function: Callable[..., object], *arguments: object) -> Reply:
        """Call a function that may be the program's own, on an empty stack; a profiler or tracer that the program left on sees
        it.
        """
        return (self.call_traced if _is_traced() else self.call_untraced)(function, *arguments)

    def call_traced(self, function: Callable[..., object], *arguments: object) -> Reply:
        """Call a function that may turn on a profiler or tracer; takes several times as long as `call`."""
        return self.run(_call_object, function, arguments)

    def call_untraced(self, function: Callable[..., object], *arguments: object) -> Reply:
        """Call a function that plain Python would not call, on an empty stack."""
        frame = self._current_frame()
        try:
            frame.value = 0
            value = call(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - a program may raise anything
            return _raised(error)
        return Reply(value=value)

    def run(self, function: Callable[..., object], *arguments: object, forget_depth: bool = False) -> Reply:
        """Call a function of `python_api` that may run a program's code, in the same way; `forget_depth` gives back the part of
        the recursion limit that the frames of this thread have used.
        """
        traced = _is_traced()
        callee: Callable[[], Any] = partial(function, *arguments)
        if traced:  # nothing may come between: the same call resumes tracing
            callee = partial(list, map(call, (partial(_resume_tracing, self._state), callee)))
        # The interpreter's own stack holds the callee, and drops it before anything of this frame can be traced: its next
        # line, or the exception that arrives in it.
        callees = [callee]
        end = ref(callee, partial(_suspend_tracing, self._state))
        del callee
        if forget_depth:
            self._remaining.value = sys.getrecursionlimit() + _DEPTH_OF_CALL_TO_C
        frame = self._current_frame()
        if not traced:
            self.resume_tracing()
        self._is_suspended = True
        try:
            frame.value = 0
            value = callees.pop()()
        except BaseException as error:  # noqa: BLE001 - a program may raise anything
            return _raised(error)
        del end
        return Reply(value=value[-1] if traced else value)  # pyright: ignore[reportIndexIssue] - the list

    def _current_frame(self) -> ctypes.c_size_t:
        """Return the cell in which this thread keeps its current frame.

        While it is 0, calls made by C code have no caller. The interpreter sets it whenever a Python function is called or
        returns, so it must be cleared right before the call into C.
        """
        if self._frame_offset is None:
            return self._holder
        return _word_at(self._holder.value + self._frame_offset)


class VisibleStack(Stack):
    """The stack of an interpreter whose frames stay visible."""

    __slots__ = ()

    def __init__(self, state: int) -> None:
        super().__init__(state, remaining=ctypes.c_int(), holder=ctypes.c_size_t(), frame_offset=None)


def _is_traced() -> bool:
    """Return whether a program has left a profiler, a tracer or a tool of `sys.monitoring` on."""
    if getprofile() is not None or gettrace() is not None:
        return True
    return _monitoring is not None and any(map(_monitoring.get_tool, _TOOL_IDS))


def _raised(error: BaseException) -> Reply:
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    return Reply(error=error)


def measure(*, hide: bool = True) -> Stack:
    """Return the stack of the calling thread, found in memory; its frames stay visible unless they can be hidden and `hide`."""
    get_state = python_api.PyThreadState_Get
    get_state.restype = ctypes.c_size_t
    state: int = get_state()
    layout = _LAYOUTS.get(sys.version_info[:2]) if hide else None
    if layout is None or ctypes.sizeof(ctypes.c_void_p) != _WORD_BYTES or sys.implementation.name != "cpython":
        return VisibleStack(state)
    remaining_offset, holder_offset, frame_offset, code_offset = layout
    remaining = ctypes.c_int.from_address(state + remaining_offset)
    limit = ctypes.c_int.from_address(state + remaining_offset + _INT_BYTES).value
    if limit != sys.getrecursionlimit() or not 0 < remaining.value <= limit:
        return VisibleStack(state)
    frame = _read_word(state + holder_offset)
    if frame_offset is not None:
        frame = _read_word(frame + frame_offset)
    if _read_word(frame + code_offset) != id(_read_word.__code__):  # the frame that runs when it reads
        return VisibleStack(state)
    holder = _word_at(state + holder_offset)
    return Stack(state, remaining=remaining, holder=holder, frame_offset=frame_offset)


def _read_word(address: int) -> int:
    """Return a pointer read from memory; 0 for unmapped addresses, so that a wrong guess crashes nothing."""
    word = ctypes.c_size_t()
    local = _Area(ctypes.addressof(word), _WORD_BYTES)
    remote = _Area(address, _WORD_BYTES)
    ctypes.CDLL(None).process_vm_readv(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return word.value


class _Area(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_size_t), ("num_bytes", ctypes.c_size_t))
