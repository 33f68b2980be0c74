"""Processes of the models are killed in the middle of steps: the run goes on from its checkpoints, and learns all the same."""

import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.observability.metrics_file import read_metrics
from benchmarks.rollout.killed_run import Kill, Outcome, Victim, play
from benchmarks.rollout.kills import accuracy_faults
from benchmarks.training.topologies import STANDARD_ERRORS, Learnt, places

_MODELS = (Victim.ACTOR, Victim.CRITIC, Victim.REWARD_MODEL)
_NUM_STEPS = 10


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with played(prompts_per_step=8) as outcome:
        yield outcome


@contextmanager
def played(*, prompts_per_step: int) -> Iterator[Outcome]:
    """Give a PPO run with a kill in every second step: two steps are made again at most, and no death falls into a restart."""
    rng = random.Random(7)
    kills = [Kill(victim=victim, step=2 + 2 * index, moment=rng.random()) for index, victim in enumerate(_MODELS)]
    overrides = [
        *places({"actor_ref": 2, "critic_reward": 1, "rollout": 1}),
        f"rollout.prompts_per_step={prompts_per_step}",
    ]
    overrides += [f"validation.every_steps={_NUM_STEPS}"]
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    try:
        yield play(folder, kills, config="configs/demo_ppo.yaml", overrides=overrides, num_steps=_NUM_STEPS)
    finally:
        shutil.rmtree(folder)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_every_step_ends_once_whichever_model_dies_and_nothing_is_lost_or_left(outcome: Outcome):
    assert outcome.faults == [], outcome.output[-3000:]
    assert [kill.victim for kill in outcome.killed] == list(_MODELS)
    assert read_metrics(outcome.run_dir / "metrics.jsonl")[-1]["actor/restarts"] == len(_MODELS)
    log = (outcome.run_dir / "run.log").read_text()
    assert log.count("its process died; restarting the models") == len(_MODELS)
    result = json.loads((outcome.run_dir / "result.json").read_text())
    assert result["survived"]["actor/restarts"] == len(_MODELS)
    assert f"survived:       {len(_MODELS)} restarts of the models" in outcome.output


@pytest.mark.ray
@pytest.mark.soak
@pytest.mark.timeout(1600)
def test_the_run_learns_in_spite_of_the_deaths():
    with played(prompts_per_step=48) as outcome:
        learnt = outcome.learnt
    assert learnt is not None
    assert learnt.last > learnt.first + STANDARD_ERRORS * math.sqrt(2) * learnt.stderr


def test_a_run_that_has_lost_what_it_learnt_is_found():
    undisturbed = Learnt(first=0.4, last=0.62, stderr=0.03)
    assert accuracy_faults(Learnt(first=0.4, last=0.58, stderr=0.03), undisturbed) == []
    assert accuracy_faults(Learnt(first=0.4, last=0.41, stderr=0.03), undisturbed) != []
