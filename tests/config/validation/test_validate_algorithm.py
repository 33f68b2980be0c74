from pathlib import Path

import pytest

from agentrl.algorithms.advantage import ADVANTAGES
from agentrl.algorithms.aggregation import AGGREGATIONS
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS
from agentrl.algorithms.policy_loss import POLICY_LOSSES
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES
from agentrl.config.load import load_run_config
from agentrl.config.schema.algorithm import (
    ADVANTAGE_NAMES,
    AGGREGATION_NAMES,
    KL_ESTIMATOR_NAMES,
    POLICY_LOSS_NAMES,
    TOKEN_ADVANTAGE_NAMES,
)
from agentrl.errors import ConfigError

DEMO = str(Path(__file__).resolve().parents[3] / "configs" / "demo.yaml")


def test_the_config_knows_the_names_of_all_functions():
    assert (*ADVANTAGES,) == ADVANTAGE_NAMES
    assert (*TOKEN_ADVANTAGES,) == TOKEN_ADVANTAGE_NAMES
    assert (*POLICY_LOSSES,) == POLICY_LOSS_NAMES
    assert (*AGGREGATIONS,) == AGGREGATION_NAMES
    assert (*KL_ESTIMATORS,) == KL_ESTIMATOR_NAMES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.kl_in=reward"], r"`algorithm\.kl_in` is .*, but `algorithm\.kl_coefficient` is 0"),
        (["algorithm.kl_target=6"], r"`algorithm\.kl_target` is .*, but `algorithm\.kl_coefficient` is 0"),
        (["algorithm.kl_target=-1"], r"`algorithm\.kl_target` is -1, and must be at least 0"),
        (
            ["algorithm.discount=0.9"],
            r"`algorithm\.discount` is .*, but `algorithm\.advantage: grpo` gives all tokens",
        ),
        (
            ["algorithm.advantage=gae", "algorithm.gae_lambda=1.1"],
            r"`algorithm\.gae_lambda` is 1\.1, and must be at most 1",
        ),
        (["critic.path=examples/arithmetic/policy"], r"`critic\.path` is .*, but .* uses no critic"),
        (["critic.warmup_steps=2"], r"unknown key `critic\.warmup_steps`"),
        (["actor.epochs_per_step=0"], r"`actor\.epochs_per_step` is 0, and must be at least 1"),
        (["critic.value_clip=0.1"], r"`critic\.value_clip` is .*, but `algorithm\.advantage: grpo` uses no critic"),
        (
            ["algorithm.advantage=my_module.mine", "critic.value_clip=0.1"],
            r"`critic\.value_clip` is .*, but there is no critic; name one in `critic\.path`",
        ),
        (["algorithm.kl_estimator=k2"], r"`algorithm\.kl_estimator` is .*, but `algorithm\.kl_coefficient` is 0"),
        (
            ["algorithm.advantage=reinforce_plus_plus", "algorithm.gae_lambda=0.9"],
            r"`algorithm\.gae_lambda` is .*, but .* use `gae`",
        ),
        (["algorithm.advantage=rloo", "algorithm.gae_lambda=0.9"], r"`algorithm\.gae_lambda` is .*, but"),
        (["rollout.samples_per_prompt=1"], r"`rollout\.samples_per_prompt` is 1, .* all advantages would be 0"),
        (
            ["algorithm.selection.keep=1", "algorithm.selection.min_positives=0"],
            r"`algorithm\.selection\.keep` is 1, .* all advantages would be 0; take 2 or more",
        ),
        (["algorithm.clip_ratio_low=1.1"], r"`algorithm\.clip_ratio_low` is 1\.1, and must be at most 1"),
        (
            ["algorithm.policy_loss=gspo", "algorithm.clip_ratio_low=1.5"],
            r"`algorithm\.clip_ratio_low` is 1\.5, and must be at most 1",
        ),
        (
            ["algorithm.policy_loss=cispo", "algorithm.clip_ratio_low=1.5"],
            r"`algorithm\.clip_ratio_low` is 1\.5, and must be at most 1",
        ),
        (["algorithm.policy_loss=cispo", "algorithm.clip_ratio_dual=3"], r"`algorithm\.clip_ratio_dual` is 3\.0, but"),
        (
            ["algorithm.rollout_correction.max_ratio=3"],
            r"`algorithm\.rollout_correction\.max_ratio` is .*, but .*method` is `none`",
        ),
        (
            ["algorithm.rollout_correction.level=trajectory"],
            r"`algorithm\.rollout_correction\.level` is .*, but .*method` is `none`",
        ),
        (
            ["algorithm.rollout_correction.method=truncate", "algorithm.rollout_correction.min_ratio=0.1"],
            r"`algorithm\.rollout_correction\.min_ratio` is .*, but .* has no lower bound; use `mask`",
        ),
        (["algorithm.selection.method=all"], r"`algorithm\.selection\.keep` is .*, but .* keeps every trajectory"),
        (
            ["algorithm.selection.method=all", "algorithm.selection.positives=sorted"],
            r"`algorithm\.selection\.positives` is .*, but",
        ),
        (["reward.weight=0.5"], r"`reward\.weight` is 0\.5, but there is no reward model"),
        (
            ["algorithm.advantage=gea"],
            r"must be one of grpo, rloo, reinforce_plus_plus_baseline, reinforce_plus_plus, gae",
        ),
        (
            ["algorithm.aggregation=token_meen"],
            r"`algorithm\.aggregation` is `token_meen`, and must be one of token_mean, trajectory_mean, fixed_length",
        ),
        (
            ["algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=k4"],
            r"`algorithm\.kl_estimator` is `k4`, and must be one of k1, k2, k3, or an import path",
        ),
    ],
)
def test_a_switch_without_effect_is_refused(words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(DEMO, words)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.advantage=reinforce_plus_plus", "rollout.samples_per_prompt=8", "algorithm.discount=0.9"],
        ["algorithm.advantage=gae", "algorithm.gae_lambda=0.9", "critic.value_clip=0.1"],
        ["algorithm.advantage=my_module.mine", "algorithm.gae_lambda=0.9", "algorithm.discount=0.9"],
        ["algorithm.policy_loss=gspo", "algorithm.clip_ratio_dual=3"],
        ["algorithm.policy_loss=gspo", "algorithm.clip_ratio_low=3.0e-4", "algorithm.clip_ratio_high=4.0e-4"],
        ["algorithm.policy_loss=cispo", "algorithm.clip_ratio_low=1"],
        ["algorithm.policy_loss=my_module.mine", "algorithm.clip_ratio_low=2"],
        ["algorithm.clip_ratio_low=1"],
        ["algorithm.rollout_correction.method=truncate", "algorithm.rollout_correction.max_ratio=3"],
        ["algorithm.rollout_correction.method=mask", "algorithm.rollout_correction.min_ratio=0.1"],
        ["algorithm.selection.method=all", "algorithm.selection.keep=0"],
        [
            "algorithm.selection.keep=1",
            "algorithm.selection.min_positives=0",
            "algorithm.advantage=reinforce_plus_plus",
        ],
        ["algorithm.kl_coefficient=0.1", "algorithm.kl_in=reward", "algorithm.kl_estimator=k1"],
        [
            "algorithm.kl_coefficient=0.1",
            "algorithm.kl_estimator=my_module.mine",
            "algorithm.aggregation=my_module.mine",
        ],
        ["algorithm.kl_coefficient=0.1", "algorithm.kl_target=6"],
    ],
)
def test_a_switch_with_an_effect_is_accepted(words: list[str]):
    assert load_run_config(DEMO, words)


def test_what_the_algorithm_asks_for_decides_which_models_there_are():
    def models(*words: str) -> tuple[bool, bool, bool]:
        config = load_run_config(DEMO, words).config
        return config.has_reference, config.has_critic, config.has_reward_model

    assert models() == (False, False, False)
    assert models("algorithm.kl_coefficient=0.1", "algorithm.advantage=gae") == (True, True, False)
    scored = ("reward.model.path=examples/arithmetic/policy", "algorithm.selection.drop_equal_reward=false")
    assert models(*scored, "reward.weight=0") == (False, False, True)
    mine = ("algorithm.advantage=my_module.mine", "critic.path=examples/arithmetic/policy")
    assert models(*mine) == (False, True, False)
