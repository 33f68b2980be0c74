from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.config.validation.warnings import config_warnings

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SHIPPED = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.parent.glob("examples/*/run.yaml")])
GAE = ["algorithm.advantage=gae"]


def warnings(*words: str, file: Path = CONFIGS / "demo.yaml") -> list[str]:
    return config_warnings(load_run_config(str(file), words, purpose=Purpose.SIMULATION).config)


@pytest.mark.usefixtures("vllm_is_installed")
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_no_config_that_is_shipped_is_warned_of(file: Path):
    assert warnings(file=file) == []


def test_k1_in_the_loss_is_warned_of():
    [warning] = warnings("algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=k1")
    assert "`algorithm.kl_estimator` is `k1`, whose gradient in the loss is 0 on average on fresh samples" in warning
    assert "use `k2` or `k3`, or `algorithm.kl_in: reward`" in warning
    assert warnings("algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=k2") == []
    assert warnings("algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=k1", "algorithm.kl_in=reward") == []


@pytest.mark.parametrize("key", ["algorithm.clip_ratio_dual", "critic.value_clip"])
def test_a_bound_is_warned_of_where_one_update_compares_a_model_with_itself(key: str):
    [warning] = warnings(*GAE, f"{key}=3")
    assert warning.startswith(f"`{key}` is 3, but with one update per step")
    assert warnings(*GAE, f"{key}=3", "actor.mini_batches_per_step=2") == []
    assert warnings(*GAE, f"{key}=3", "actor.epochs_per_step=2") == []
    assert warnings(*GAE, f"{key}=0") == []


def test_a_bound_that_a_loss_of_the_users_own_may_read_is_left_alone():
    assert warnings("algorithm.clip_ratio_dual=3", "algorithm.policy_loss=my_module.mine") == []


def test_the_default_bound_of_a_critic_is_no_reason_to_warn():
    assert warnings(*GAE) == []


def test_tokens_of_older_policies_without_a_correction_are_warned_of():
    [warning] = warnings("rollout.max_staleness=3")
    assert warning.startswith("`rollout.max_staleness` is 3, and `algorithm.rollout_correction.method` is `none`")
    assert warnings("rollout.max_staleness=3", "algorithm.rollout_correction.method=truncate") == []


def test_held_out_prompts_that_are_never_used_are_warned_of():
    [warning] = warnings("validation.every_steps=0", "checkpoint.keep_best=0")
    assert warning.startswith("`data.validation_files` is unused while `validation.every_steps` is 0; set that to 10")
    assert warnings("validation.every_steps=0", "checkpoint.keep_best=0", "data.validation_files=[]") == []


def test_an_answer_format_that_the_reward_does_not_read_is_warned_of():
    users = "reward.class_name=my_rewards.MyReward"
    [warning] = warnings(users)
    assert warning.startswith("`reward.answer_format` is `tagged`, but only the math reward reads it")
    assert warnings(users, "reward.answer_format=auto") == warnings("reward.answer_format=boxed") == []
