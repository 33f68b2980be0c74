"""The import of a preload set by a zygote."""

import _random
import ctypes
import functools
import gc
import importlib
import os
import random
import sys
from collections.abc import Callable, Sequence

from code_judge_server.jail.python import private_text, python_main

ALWAYS = (
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "typing",
)
"""Modules in every set: together they add 0.2 ms to a fork, and save a typical program 3 to 5 ms of imports."""

_MADV_COLLAPSE = 25
_TWISTER_BYTES = 624 * 4
"""Size of the key of `mt19937_state`, numpy's legacy generator; a position follows."""


def load(modules: Sequence[str], *, fast_path: bool = True) -> None:
    """Import `modules` and `ALWAYS`, run their one-time initializations, and make their text cheap to fork.

    Must be called once, just before the first fork: no module of this package can be imported afterwards. Garbage collection is
    off from then on; `python_main.run` turns it on again.

    Args:
        modules: Names of modules.
        fast_path: Copy the text to private memory, and hide the interpreter's frames from programs.

    Raises:
        ImportError: a module does not exist.
    """
    gc.disable()
    for name in (*ALWAYS, *modules):
        importlib.import_module(name)
    refresh: list[Callable[[], object]] = [functools.partial(_random.Random.seed, random._inst)]
    refresh += [_WARM_UPS[name]() for name in modules if name in _WARM_UPS]
    if "threading" in sys.modules:
        refresh.append(sys.modules["threading"].main_thread()._set_native_id)
    _tidy_path()
    python_main.prepare(refresh, hide_frames=fast_path)
    python_main.freeze()
    if fast_path:
        private_text.make_text_private()
        use_huge_pages("r-xp")


def _warm_numpy() -> Callable[[], object]:
    import numpy as np

    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    np.linalg.solve(matrix, np.linalg.inv(matrix) @ np.fft.fft(matrix).real)
    np.linalg.eigh(matrix)
    np.random.default_rng(0).normal(size=2)
    str(matrix)
    return functools.partial(_refill_mersenne_twister, np.random.mtrand._rand._bit_generator.ctypes.state_address)


def _refill_mersenne_twister(address: int) -> None:
    """Give numpy's legacy generator a random state; `np.random.seed` would write to a hundred more pages."""
    ctypes.memmove(address, os.urandom(_TWISTER_BYTES), _TWISTER_BYTES)


def _warm_sympy() -> Callable[[], object]:
    import sympy
    from sympy.core.cache import clear_cache
    from sympy.core.random import rng

    num_dummies = sympy.Dummy._count
    x = sympy.Symbol("x")
    sympy.solve(x**2 - 5 * x + 6, x)
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.integrate(sympy.exp(-x) * x, x)
    sympy.factorint(360)
    str(sympy.Matrix([[1, 2], [3, 4]]).det() + sympy.Rational(1, 2).evalf())
    clear_cache()
    sympy.Dummy._count = num_dummies  # programs print it in names
    return functools.partial(_random.Random.seed, rng)


_WARM_UPS: dict[str, Callable[[], Callable[[], object]]] = {"numpy": _warm_numpy, "sympy": _warm_sympy}
"""Functions, by module, that run a small job to load its lazy parts and return the function that reseeds it in a child."""


def _tidy_path() -> None:
    """Remove entries of the search path that a program does not have: the starter's own, and folders outside the jail."""
    sys.path[:] = [entry for entry in sys.path if entry.endswith(".zip") or os.path.isdir(entry)]
    sys.path_importer_cache.clear()


def use_huge_pages(rights: str = "rw-p") -> None:
    """Ask for huge pages under the mappings with these rights, so that a fork copies fewer page tables. Best effort: old
    kernels have none.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        with open("/proc/self/maps") as maps:
            areas = [line.split() for line in maps]
    except OSError:
        return
    for area in areas:
        is_anonymous = area[1] == rights and (len(area) == 5 or area[5] == "[heap]")
        start, end = private_text.huge_part(*(int(address, 16) for address in area[0].split("-")))
        if is_anonymous and end > start:
            libc.madvise(start, end - start, _MADV_COLLAPSE)
