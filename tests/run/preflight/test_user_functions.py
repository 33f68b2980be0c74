"""Custom algorithm functions before the start; `tests/training/update` has their results."""

from typing import Any

import pytest
from torch import Tensor

from agentrl.algorithms.advantage import grpo
from agentrl.algorithms.token_advantage import TokenAdvantage, TokenCredit
from agentrl.config.schema.run import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.run.preflight.user_functions import check_algorithm_functions


def own_advantages(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return grpo(groups, normalise_by_std=normalise_by_std)


def own_credit(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
    return TokenCredit(advantages_N=rewards_N, returns_N=rewards_N)


needs_values = TokenAdvantage(estimate=own_credit, uses_values=True)


def check(name: str, *, has_critic: bool = False) -> None:
    settings: dict[str, Any] = {"advantage": f"{__name__}.{name}"}
    check_algorithm_functions(AlgorithmSection(kl_coefficient=0.1, **settings), has_critic=has_critic)


def test_an_estimator_that_uses_values_needs_a_critic():
    check("needs_values", has_critic=True)
    with pytest.raises(
        ConfigError, match=r"which uses values, and there is no critic; name its model in `critic\.path`"
    ):
        check("needs_values")


def test_a_critic_without_returns_to_learn_is_refused():
    check("own_advantages")
    with pytest.raises(
        ConfigError, match=r"`critic\.path` names a critic, but .*own_advantages`, .* no returns to learn"
    ):
        check("own_advantages", has_critic=True)
