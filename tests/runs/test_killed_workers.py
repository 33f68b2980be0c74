"""Engine, agent-loop worker and judge, or the worker that holds a node's judge, killed in the middle of a step.

Every step ends, and nothing is lost, mixed up or left.
"""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.rollout.killed_run import Kill, Outcome, Victim, play
from tests.runners.run_process import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

_VICTIMS = (Victim.ENGINE, Victim.WORKER, Victim.JUDGE)
_PER_KIND = 1
_OVERRIDES = [*SMALL, "rollout.max_concurrent_trajectories=16"]


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with played(_VICTIMS) as outcome:
        yield outcome


@contextmanager
def played(kinds: Sequence[Victim]) -> Iterator[Outcome]:
    """Give one run with a kill in every step but the first and the last, at random moments, which shares the start."""
    rng = random.Random(7)
    victims = [victim for victim in kinds for _ in range(_PER_KIND)]
    rng.shuffle(victims)
    kills = [Kill(victim=victim, step=number, moment=rng.random()) for number, victim in enumerate(victims, start=2)]
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    try:
        yield play(folder, kills, config="configs/demo.yaml", overrides=_OVERRIDES, num_steps=len(kills) + 2)
    finally:
        shutil.rmtree(folder)


def test_every_step_ends_with_every_prompt_accounted_for_and_no_tokens_of_two_episodes(outcome: Outcome):
    assert outcome.faults == [], outcome.output[-3000:]
    assert Counter(kill.victim for kill in outcome.killed) == dict.fromkeys(_VICTIMS, _PER_KIND)


def test_what_was_killed_was_noticed_and_started_again(outcome: Outcome):
    log = (outcome.run_dir / "run.log").read_text()
    assert log.count("engine 0: dead: ") == log.count("engine 0: open") == _PER_KIND
    assert log.count("judge: died with code -9") == _PER_KIND


@pytest.mark.soak
def test_a_worker_that_holds_the_judge_of_its_node_is_started_again():
    with played([Victim.NODE_JUDGE]) as outcome:
        assert outcome.faults == [], outcome.output[-3000:]
        assert [kill.victim for kill in outcome.killed] == [Victim.NODE_JUDGE] * _PER_KIND
        log = (outcome.run_dir / "run.log").read_text()
        assert log.count(": its process died; restarting at http://") == _PER_KIND
        assert log.count(" 0: listening on http://") == _PER_KIND
