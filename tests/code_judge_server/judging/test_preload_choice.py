"""The choice of a warm interpreter, and the frames that interpreters of this version can hide."""

import base64
import subprocess
import sys
import time
from pathlib import Path

import pytest

from code_judge_server.judging.preload_choice import choose_preload

SETS = {"bare": (), "sympy": ("sympy",), "sci": ("numpy", "sympy"), "frames": ("numpy", "pandas")}


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        (b"", "bare"),
        (b"print('import numpy')", "bare"),
        (b"import numpy as np", "sci"),
        (b"import os, sympy.abc as abc # both", "sympy"),
        (b"from sympy import *\nf = lambdify(x, sin(x))", "sci"),
        (b'exec(base64.b64decode("' + base64.b64encode(b"import sympy\nprint(1)") + b'".encode()).decode())', "sympy"),
        (b"base64.b64decode('not base64, but import numpy')\nb64decode('" + b"A" * 17 + b"')", "bare"),
        (b"def f():\n\tfrom numpy.linalg import (\n\t\tnorm)", "sci"),
        (b"import pandas\nimport numpy", "frames"),
        (b"import numpyro\nfrom sympy_tools import x\nfrom . import numpy", "bare"),
        (b"\xff\xfe\x00import numpy", "bare"),
        (b"x = 1\r\nimport sympy\r\n", "sympy"),
    ],
)
def test_the_imports_choose_the_set(source: bytes, chosen: str):
    assert choose_preload(source, SETS) == chosen


def test_without_sets_no_set_is_chosen():
    assert choose_preload(b"import numpy", {}) is None


@pytest.mark.parametrize(
    "source",
    [
        b" ",
        b"import a,",
        b"from a",
        b"from ",
        b"import a\n",
        b"\n",
        b"import .",
        b"from a.",
        b"import\t",
        b"\\\n",
        b"b64decode('AAAAAAAAAAAAAAAAAAA",
        b"A",
        b"b64decode( ",
    ],
)
def test_a_hostile_program_costs_no_time(source: bytes):
    started_s = time.thread_time()
    choose_preload(source * (20_000_000 // len(source)), SETS)
    assert time.thread_time() - started_s < 2


def test_the_frames_below_a_program_can_be_hidden_here():
    # Where they could not, nothing would fail but parity: `measure` must know this version of CPython.
    code = "from code_judge_server.jail.python.hidden_frames import measure; print(type(measure()).__name__)"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert completed.stdout == "Stack\n"
