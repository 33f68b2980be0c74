"""How a zygote loads the set of modules that its interpreter holds."""

import _random
import ctypes
import functools
import gc
import importlib
import os
import random
import sys
from collections.abc import Callable, Sequence

from code_judge_server.jail import private_text, python_main

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
"""Modules that every set holds: together they add 0.2 ms to a fork, and save a typical program 3 to 5 ms of imports."""

_MADV_COLLAPSE = 25
_TWISTER_BYTES = 624 * 4
"""The key of `mt19937_state`, numpy's legacy generator; a position follows."""


def load(modules: Sequence[str]) -> None:
    """Import `modules` and `ALWAYS`, do once what their first use would do in every job, and make their text cheap to fork.

    To be called once, last of all, before anything is forked: no module of this package can be imported any more. Garbage
    collection is off from then on; `python_main.run` turns it on again.

    Raises:
        ImportError: there is no such module.
    """
    gc.disable()
    for name in (*ALWAYS, *modules):
        importlib.import_module(name)
    refresh: list[Callable[[], object]] = [functools.partial(_random.Random.seed, random._inst)]
    refresh += [_WARM_UPS[name]() for name in modules if name in _WARM_UPS]
    if "threading" in sys.modules:
        refresh.append(sys.modules["threading"].main_thread()._set_native_id)
    _tidy_path()
    python_main.prepare(refresh)
    python_main.freeze()
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
    """Give numpy's legacy generator a random state: `np.random.seed` writes to a hundred pages more."""
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
    sympy.Dummy._count = num_dummies  # it is in the names that programs print
    return functools.partial(_random.Random.seed, rng)


_WARM_UPS: dict[str, Callable[[], Callable[[], object]]] = {"numpy": _warm_numpy, "sympy": _warm_sympy}
"""By module: does a small job, so that what it loads lazily is there, and returns what reseeds it in a child."""


def _tidy_path() -> None:
    """Drop from the search path what is not there for a program: the starter's own entries, and folders outside the jail."""
    sys.path[:] = [entry for entry in sys.path if entry.endswith(".zip") or os.path.isdir(entry)]
    sys.path_importer_cache.clear()


def use_huge_pages(rights: str = "rw-p") -> None:
    """Ask for huge pages under the heap: a fork then copies fewer page tables. Best effort: old kernels have none.

    Args:
        rights: of the mappings that get them, as /proc/self/maps has them.
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
