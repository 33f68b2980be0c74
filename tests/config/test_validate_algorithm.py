from pathlib import Path

import pytest

from agentrl.algorithms.advantage import ADVANTAGES
from agentrl.algorithms.policy_loss import POLICY_LOSSES
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES
from agentrl.config.algorithm_schema import ADVANTAGE_NAMES, POLICY_LOSS_NAMES, TOKEN_ADVANTAGE_NAMES
from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError

DEMO = str(Path(__file__).resolve().parents[2] / "configs" / "demo.yaml")


def test_the_config_knows_the_names_of_all_advantages_and_losses():
    assert (*ADVANTAGES,) == ADVANTAGE_NAMES
    assert (*TOKEN_ADVANTAGES,) == TOKEN_ADVANTAGE_NAMES
    assert (*POLICY_LOSSES,) == POLICY_LOSS_NAMES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.kl_in=reward"], r"`algorithm\.kl_in` is set, but `algorithm\.kl_coefficient` is 0"),
        (["algorithm.kl_target=6"], r"`algorithm\.kl_target` is set, but `algorithm\.kl_coefficient` is 0"),
        (["algorithm.kl_target=-1"], r"`algorithm\.kl_target` is -1\.0, and must not be negative"),
        (["algorithm.kl_horizon=0"], r"`algorithm\.kl_horizon` is 0, and must be at least 1"),
        (
            ["algorithm.discount=0.9"],
            r"`algorithm\.discount` is set, but `algorithm\.advantage: grpo` gives all tokens",
        ),
        (
            ["algorithm.advantage=gae", "algorithm.gae_lambda=1.1"],
            r"`algorithm\.gae_lambda` is 1\.1, and must be from 0 to 1",
        ),
        (["critic.path=examples/arithmetic/policy"], r"`critic\.path` is set, but .* asks no critic"),
        (["critic.adam_beta1=1"], r"`critic\.adam_beta1` is 1\.0, and must be from 0 to below 1"),
        (["critic.max_grad_norm=0"], r"`critic\.max_grad_norm` is 0\.0, and must be above 0"),
        (["critic.mini_batches_per_step=13"], r"`critic\.mini_batches_per_step` is 13, more than the 12 groups"),
        (["reward.weight=0.5"], r"`reward\.weight` is 0\.5, but there is no reward model"),
        (
            ["algorithm.advantage=gea"],
            r"must be one of grpo, rloo, reinforce_plus_plus_baseline, reinforce_plus_plus, gae",
        ),
    ],
)
def test_a_switch_without_effect_is_refused(words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(DEMO, words)


def test_what_the_algorithm_asks_for_decides_which_models_there_are():
    def models(*words: str) -> tuple[bool, bool, bool]:
        config = load_run_config(DEMO, words).config
        return config.has_reference, config.has_critic, config.has_reward_model

    assert models() == (False, False, False)
    assert models("algorithm.kl_coefficient=0.1", "algorithm.advantage=gae") == (True, True, False)
    assert models("reward.model.path=examples/arithmetic/policy", "reward.weight=0") == (False, False, True)
    mine = ("algorithm.advantage=my_module.mine", "critic.path=examples/arithmetic/policy")
    assert models(*mine) == (False, True, False)
