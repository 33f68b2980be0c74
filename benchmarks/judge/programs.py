"""Programs of the benchmarks: single programs of known cost, and a seeded mix like that of a training run.

Each `Call` has its right verdict, so that a fast but wrong answer is noticed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.judge.honest_programs import PLAIN, SCIENTIFIC, Case

TRIVIAL = Case(code="print(int(input()) + 1)\n", stdin="41", expected_output="42")
SYMPY = Case(code="import sympy\nprint(sympy.Rational(1, 3) + sympy.Rational(1, 6))\n", expected_output="1/2")
NUMPY_AND_SYMPY = Case(
    code="""import numpy as np
from sympy import expand, symbols
x = symbols("x")
print(expand((x + 1) ** 2), int(np.arange(10).sum()))
""",
    expected_output="x**2 + 2*x + 1 45",
)

_TIME_LIMIT_S = 1.0
_CRASHES: tuple[tuple[str, dict[str, int]], ...] = (
    ("raise ValueError('the model erred')\n", {"exit_code": 1}),
    ("print(undefined_name)\n", {"exit_code": 1}),
    ("def broken(:\n", {"exit_code": 1}),
    ("import sys\nprint('bye')\nsys.exit(3)\n", {"exit_code": 3}),
    ("import os\nos.abort()\n", {"signal": 6}),
    ("import ctypes\nctypes.string_at(0)\n", {"signal": 11}),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n", {"signal": 15}),
    ("def f(n):\n    return f(n + 1)\nf(0)\n", {"exit_code": 1}),
)
_FLOODS = (
    "while True:\n    print('y' * 1000)\n",
    "import sys\nwhile True:\n    sys.stderr.write('warning: again\\n' * 100)\n",
    "import os\nblock = bytes(65536)\nwhile True:\n    os.write(1, block)\n",
)
_LOOPS = ("while True:\n    pass\n", "n = 1\nwhile n:\n    n += 1\n")
_SLEEPS = ("import time\ntime.sleep(600)\n", "import threading\nthreading.Event().wait()\n")


class Kind(StrEnum):
    """Behaviour of a call of the mix."""

    PLAIN = "plain"
    SCIENTIFIC = "scientific"
    CRASH = "crash"
    FLOOD = "flood"
    LOOP = "loop"
    SLEEP = "sleep"


SHARES = {Kind.SCIENTIFIC: 1 / 3, Kind.CRASH: 0.02, Kind.FLOOD: 0.01, Kind.LOOP: 0.003, Kind.SLEEP: 0.003}
"""Share of each kind in the mix; the rest is plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One submission and its right verdict."""

    kind: Kind
    submission: dict[str, Any]
    """The submission in the native format."""
    expected: dict[str, Any] = field(default_factory=lambda: {"status": "accepted", "exit_code": 0})
    """Fields of the verdict and their values."""

    @property
    def is_honest(self) -> bool:
        """True if it is accepted when it runs alone."""
        return self.kind in (Kind.PLAIN, Kind.SCIENTIFIC)

    def is_right(self, verdict: dict[str, Any]) -> bool:
        """Return whether this verdict is the right one."""
        return all(verdict.get(name) == value for name, value in self.expected.items())


def repeated(case: Case, count: int, *, prefix: str) -> list[Call]:
    """Return `count` calls of one program, with different ids."""
    return [_honest(case, Kind.PLAIN, f"{prefix}-{number}") for number in range(count)]


def mix(num_calls: int, *, seed: int, prefix: str = "mix", without: frozenset[Kind] = frozenset()) -> list[Call]:
    """Return calls of the mix of `SHARES`, in random order, the same for the same arguments.

    Args:
        num_calls: Number of calls; every kind gets its exact share, rounded up, so that a short mix has all kinds.
        seed: Seed of the programs and of their order.
        prefix: Prefix of the ids.
        without: Kinds whose calls are replaced by plain ones; all others keep their contents and places.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(max(1, round(num_calls * share)))]
    kinds = [*kinds, *[Kind.PLAIN] * (num_calls - len(kinds))][:num_calls]
    rng.shuffle(kinds)
    return list(_calls(kinds, rng, prefix, without))


def _calls(kinds: list[Kind], rng: random.Random, prefix: str, without: frozenset[Kind]) -> Iterator[Call]:
    for number, kind in enumerate(kinds):
        own = random.Random(rng.getrandbits(64))  # so that the draws of one call do not shift those of the next
        yield _call(Kind.PLAIN if kind in without else kind, own, f"{prefix}-{number}")


def _call(kind: Kind, rng: random.Random, name: str) -> Call:
    if kind is Kind.PLAIN:
        return _honest(rng.choice(PLAIN)(rng), kind, name)
    if kind is Kind.SCIENTIFIC:
        return _honest(rng.choice(SCIENTIFIC)(rng), kind, name)
    if kind is Kind.CRASH:
        code, ending = rng.choice(_CRASHES)
        return _failing(kind, name, code, expected={"status": "runtime_error", **ending})
    if kind is Kind.FLOOD:
        return _failing(kind, name, rng.choice(_FLOODS), expected={"status": "output_limit_exceeded"})
    # Only these get the short limit, so that a machine that pauses for a second fails no honest program.
    code, limit = (_LOOPS, "cpu_time_s") if kind is Kind.LOOP else (_SLEEPS, "wall_time_s")
    submission = {"limits": {limit: _TIME_LIMIT_S}}
    return _failing(kind, name, rng.choice(code), expected={"status": "time_limit_exceeded"}, **submission)


def _honest(case: Case, kind: Kind, name: str) -> Call:
    submission = {
        "id": name,
        "language": "python",
        "code": case.code,
        "stdin": case.stdin,
        "expected_output": case.expected_output,
    }
    return Call(kind=kind, submission=submission)


def _failing(kind: Kind, name: str, code: str, *, expected: dict[str, Any], **submission: Any) -> Call:
    full = {"id": name, "language": "python", "code": code, **submission}
    return Call(kind=kind, submission=full, expected=expected)
