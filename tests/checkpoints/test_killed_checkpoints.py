"""Kill -9 of a real process before each of its operations on files, while it writes a checkpoint."""

import json
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Return the state after each death, and last after none."""
    command = [sys.executable, "-m", "tests.runners.checkpoint_killer", str(tmp_path_factory.mktemp("killed"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_checkpoint_before_or_the_new_one_whole(ends: list[dict]):
    *killed, finished = ends
    assert {end["code"] for end in killed} == {-signal.SIGKILL}
    assert len(killed) > 15, "folders, weights, metadata, state and the deletion of the old one were expected"
    for end in ends:
        assert end["counts"] in ([1], [1, 2], [2])
        assert end["weights"] == [float(step) for step in end["counts"]], "each holds what belongs to its step"
    assert (finished["code"], finished["counts"]) == (0, [2])


def test_once_the_new_one_counts_it_never_stops_to(ends: list[dict]):
    newest = [end["counts"][-1] for end in ends]
    assert newest == sorted(newest)
    assert set(newest) == {1, 2}


def test_what_was_half_written_is_cleared_away_at_the_next_start(ends: list[dict]):
    assert all(end["left"] == [f"step_{step:06d}" for step in end["counts"]] for end in ends)
