"""Settings for the number and age of verdicts kept for a client that sends again."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from judge_process import JudgeProcess, running_judge, wait_until

pytestmark = pytest.mark.slow

NOW = "import time; print(time.time_ns())"
LONG = "import time; print(time.time_ns(), 'x' * 60_000)"
"""Program whose verdict takes a seventeenth of a MiB."""


def outputs(judge: JudgeProcess, ids: Sequence[str], code: str = NOW) -> dict[str, str]:
    """Return a program's output under each id: the time at which it ran."""
    verdicts = judge.judge_batch([{"id": name, "code": code} for name in ids])
    assert {verdict["status"] for verdict in verdicts} == {"accepted"}
    return {verdict["id"]: verdict["stdout"] for verdict in verdicts}


@pytest.mark.parametrize(("cache_mb", "is_kept"), [(0, False), (1, True)])
def test_a_verdict_is_returned_again_unless_none_are_kept(tmp_path: Path, cache_mb: int, is_kept: bool) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--verdict-cache-mb", str(cache_mb)) as judge:
        assert (outputs(judge, ["a"]) == outputs(judge, ["a"])) == is_kept


@pytest.mark.parametrize(("cache_mb", "least", "most"), [(1, 15, 17), (4, 22, 22)])
def test_verdicts_are_kept_within_the_bound_and_the_oldest_are_dropped_first(
    tmp_path: Path, cache_mb: int, least: int, most: int
) -> None:
    ids = [f"number-{number:02}" for number in range(22)]
    with running_judge(tmp_path, "--num-slots", "2", "--verdict-cache-mb", str(cache_mb)) as judge:
        before = {name: outputs(judge, [name], LONG)[name] for name in ids}
        kept = []
        for name in reversed(ids):  # up to the first that is judged again, which drops another
            if outputs(judge, [name], LONG)[name] != before[name]:
                break
            kept.append(name)
    assert least <= len(kept) <= most


def test_a_verdict_is_kept_as_long_as_the_settings_say_and_no_longer(tmp_path: Path) -> None:
    with running_judge(tmp_path, "--num-slots", "1", "--verdict-cache-s", "1.5") as judge:
        started_at = time.monotonic()
        first = outputs(judge, ["a"])
        wait_until(lambda: outputs(judge, ["a"]) != first)
        assert time.monotonic() - started_at >= 1.5
