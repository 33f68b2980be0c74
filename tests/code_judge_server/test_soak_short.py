"""Thirty seconds of the soak: the long form is `make soak`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_left_while_parts_of_the_judge_are_killed() -> None:
    # A process of its own: the soak adopts what the judge loses, and that must not be what other tests started.
    command = [sys.executable, "-m", "benchmarks.judge.soak", "--minutes", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
