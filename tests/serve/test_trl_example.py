"""TRL's own trainer on the service: the example as a user runs it, and what it makes of single trajectories."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.serve.conftest import RealService


@pytest.mark.slow  # imports TRL
def test_tool_tokens_are_masked_and_lost_trajectories_have_neither_loss_nor_reward():
    from examples.trl_grpo.train import trl_fields

    line = {
        "num_prompt_tokens": 2,
        "token_ids": [5, 6, 7, 8, 9],
        "response_mask": [0, 0, 1, 0, 1],
        "rollout_logprobs": [None, None, -0.5, None, -0.25],
        "reward": 1.0,
        "is_masked": False,
    }
    assert trl_fields(line, nothing=2) == {
        "prompt_ids": [5, 6],
        "completion_ids": [7, 8, 9],
        "logprobs": [-0.5, 0.0, -0.25],
        "env_mask": [1, 0, 1],
        "score": 1.0,
    }
    for changed in ({"reward": None}, {"is_masked": True}):
        fields = trl_fields(line | changed, nothing=2)
        assert fields["env_mask"] == [0]
        assert fields["score"] is None
    with pytest.raises(ValueError, match="several rows"):
        trl_fields(line | {"trajectory_id": "1-0-0", "row_starts": [3]}, nothing=2)


@pytest.mark.slow  # imports TRL
def test_a_step_of_which_everything_was_lost_ends_the_training_with_the_reason():
    from examples.trl_grpo.train import rollout_func_of

    lost = {"prompt_id": "0", "sample_index": 0, "reward": None, "failures": [{"message": "the judge is away"}]}
    service = SimpleNamespace(push=lambda model: None, roll_out=lambda rows, samples: iter([lost]))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(unwrap_model=lambda model: model), model=None)
    with pytest.raises(RuntimeError, match="the judge is away"):
        rollout_func_of(cast(Any, service), [{"prompt": "a"}], end_token=2)(["a"], cast(Any, trainer))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_trl_learns_from_the_service(real_service: RealService, tmp_path: Path):
    """Five steps; the standard error of each accuracy is about 0.04."""
    command = [sys.executable, "-m", "examples.trl_grpo.train", "--url", real_service.url]
    words = ["--output", str(tmp_path), "--steps", "5", "--held-out", "64"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"held-out prompts: (\S+) before, (\S+) after", done.stdout)
    assert match, done.stdout
    before, after = map(float, match.groups())
    assert 0.25 < before < 0.6
    assert after > before + 0.15
