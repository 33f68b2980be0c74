"""The judges that hold sessions: those of tiers A and B."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from judge_process import JudgeProcess, running_judge

LIMITS = ["--num-slots", "2", "--max-cpu-time-s", "2", "--max-wall-time-s", "60", "--max-memory-mb", "256"]
_SECOND = pytest.param("B as an ordinary user", marks=pytest.mark.slow)
TIERS_AND_USERS = ["A", _SECOND] if os.geteuid() == 0 else ["B"]


@contextmanager
def session_judge(tier_and_user: str, folder: Path, *arguments: str) -> Iterator[JudgeProcess]:
    """Start a judge of one of `TIERS_AND_USERS`, with short limits; kill it at the end."""
    tier, _, user = tier_and_user.partition(" ")
    with running_judge(folder, *LIMITS, *arguments, isolation=tier, ordinary_user=bool(user)) as judge:
        yield judge
