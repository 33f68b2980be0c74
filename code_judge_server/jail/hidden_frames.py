"""Let a program begin on an empty stack, although the interpreter it runs in has frames of its own below.

Without it `traceback.print_stack`, `warnings.warn(stacklevel=2)`, `inspect.stack` and the depth of a `RecursionError` would
tell a program of a zygote from `python main.py`. CPython offers no way, so two fields of its thread state are written, where
`measure` has made sure that they are where the headers of this version say (`Include/cpython/pystate.h`); elsewhere the frames
stay visible.
"""

import ctypes
import os
import sys

_WORD_BYTES = 8
_INT_BYTES = 4

_LAYOUTS = {
    # version: (recursion_remaining, what holds the current frame, offset of the frame in that or None, of the code in a frame)
    (3, 11): (32, 56, 8, 32),
    (3, 12): (28, 56, 0, 0),
    (3, 13): (44, 72, None, 0),
}
"""Offsets in bytes within `PyThreadState`, `_PyCFrame` and `_PyInterpreterFrame`, on 64-bit machines."""
_DEPTH_OF_CALL_FROM_C = 0 if sys.version_info < (3, 12) else 1
"""How much of the recursion limit an interpreter that runs a script has used before its first frame."""


class Stack:
    """The stack of the calling thread; `measure` makes one."""

    __slots__ = ("_frame_offset", "_holder", "_remaining")

    def __init__(self, remaining: ctypes.c_int, holder: ctypes.c_size_t, frame_offset: int | None) -> None:
        self._remaining = remaining
        self._holder = holder
        self._frame_offset = frame_offset

    def current_frame(self) -> ctypes.c_size_t:
        """Return the cell in which this thread keeps its current frame.

        While it is 0, what C code calls has no caller. The interpreter fills it whenever a Python function is called or
        returns, so it is to be set right before the call into C, in the same function.
        """
        if self._frame_offset is None:
            return self._holder
        return ctypes.c_size_t.from_address(self._holder.value + self._frame_offset)

    def forget_depth(self) -> None:
        """Give back the part of the recursion limit that the frames of this thread have taken."""
        self._remaining.value = sys.getrecursionlimit() - _DEPTH_OF_CALL_FROM_C


class VisibleStack(Stack):
    """The stack of an interpreter that is not built as expected: it stays as it is."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(ctypes.c_int(), ctypes.c_size_t(), None)


def measure() -> Stack:
    """Find the stack of the calling thread in memory."""
    layout = _LAYOUTS.get(sys.version_info[:2])
    if layout is None or ctypes.sizeof(ctypes.c_void_p) != _WORD_BYTES or sys.implementation.name != "cpython":
        return VisibleStack()
    remaining_offset, holder_offset, frame_offset, code_offset = layout
    get_state = ctypes.pythonapi.PyThreadState_Get
    get_state.restype = ctypes.c_size_t
    state = get_state()
    remaining = ctypes.c_int.from_address(state + remaining_offset)
    limit = ctypes.c_int.from_address(state + remaining_offset + _INT_BYTES).value
    if limit != sys.getrecursionlimit() or not 0 < remaining.value <= limit:
        return VisibleStack()
    frame = _read_word(state + holder_offset)
    if frame_offset is not None:
        frame = _read_word(frame + frame_offset)
    if _read_word(frame + code_offset) != id(_read_word.__code__):  # which is what ran whenever it looked
        return VisibleStack()
    return Stack(remaining, ctypes.c_size_t.from_address(state + holder_offset), frame_offset)


def _read_word(address: int) -> int:
    """Read a pointer from memory; 0 where nothing is mapped, so that a wrong guess crashes nothing."""
    word = ctypes.c_size_t()
    here = _Area(ctypes.addressof(word), _WORD_BYTES)
    there = _Area(address, _WORD_BYTES)
    ctypes.CDLL(None).process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return word.value


class _Area(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_size_t), ("num_bytes", ctypes.c_size_t))
