"""Custom algorithm functions with invalid results: refused with key and name, before anything is trained."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.advantage import grpo
from agentrl.algorithms.kl_divergence import k2
from agentrl.algorithms.policy_loss import ClipRange, PolicyLoss, ppo_loss
from agentrl.algorithms.token_advantage import TokenAdvantage, TokenCredit
from agentrl.config.schema.run import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.run.preflight.user_functions import check_algorithm_functions
from agentrl.training.update import user_functions

LOGPROBS_N = torch.tensor([-1.0, -2.0, -0.5])
TRAJECTORY_N = torch.tensor([0, 0, 1])


def loss_with(change: Callable[[PolicyLoss], Any]) -> Callable[..., Any]:
    def loss(*values: Any) -> Any:
        return change(ppo_loss(*values))

    return loss


def credit_with(change: Callable[[Tensor], Any]) -> TokenAdvantage:
    def estimate(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> Any:
        return change(rewards_N)

    return TokenAdvantage(estimate=estimate, uses_values=False)


class HasEstimate:
    """An object that resembles a `TokenAdvantage`."""

    uses_values = False

    def estimate(
        self, rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float
    ) -> TokenCredit:
        return TokenCredit(advantages_N=rewards_N, returns_N=rewards_N)


right_loss = loss_with(lambda loss: loss)
loss_of_mean = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N.mean()))
loss_too_short = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N[:-1]))
loss_in_columns = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N[:, None]))
loss_detached = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N.detach()))
loss_of_nan = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N * math.nan))
bare_loss = loss_with(lambda loss: loss.loss_N)


def loss_with_short(part: str) -> Callable[..., Any]:
    """Return the loss of PPO with one part that lacks its last token."""
    return loss_with(lambda loss: replace(loss, **{part: torch.zeros(len(loss.loss_N))[:-1]}))


short_ratio, short_clipped, short_high, short_dual = (
    loss_with_short(part) for part in ("ratio_N", "clipped_low_N", "clipped_high_N", "clipped_dual_N")
)


def right_weights(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    return torch.full_like(trajectory_N, 0.5, dtype=torch.float32)


def weights_in_columns(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    return torch.ones(len(trajectory_N), 1)


def weights_of_nan(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    return torch.full((len(trajectory_N),), math.nan)


def weights_of_the_first(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    return torch.ones(1) if not len(trajectory_N) else torch.ones(len(trajectory_N))


def one_weight(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> float:
    return 0.5


def right_kl(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return k2(logprobs_N, other_logprobs_N)


def kl_in_columns(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return k2(logprobs_N, other_logprobs_N)[:, None]


def mean_kl(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return k2(logprobs_N, other_logprobs_N).mean()


def kl_detached(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return k2(logprobs_N, other_logprobs_N).detach()


def kl_of_nan(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return k2(logprobs_N, other_logprobs_N) * math.nan


def kl_that_fails(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    raise RuntimeError("needs a GPU")


def right_advantages(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return grpo(groups, normalise_by_std=normalise_by_std)


def advantages_over_deviation(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return [(rewards_G - rewards_G.mean()) / rewards_G.std() for rewards_G in groups]


def advantages_of_one_group(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return grpo(groups[:1], normalise_by_std=normalise_by_std)


def advantages_twice(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return [rewards_G.repeat(2) for rewards_G in groups]


def advantages_of_nan(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return [rewards_G / 0 * 0 for rewards_G in groups]


def advantages_as_lists(groups: list[Tensor], *, normalise_by_std: bool) -> list[list[float]]:
    return [rewards_G.tolist() for rewards_G in groups]


right_credit = credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N, returns_N=rewards_N))
one_credit = credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N.sum()[None], returns_N=rewards_N))
credit_of_nan = credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N / 0, returns_N=rewards_N))
short_returns = replace(
    credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N, returns_N=rewards_N[1:])), uses_values=True
)
bare_credit = credit_with(lambda rewards_N: rewards_N)
needs_values = TokenAdvantage(estimate=right_credit.estimate, uses_values=True)
has_estimate = HasEstimate()

WRONG = [
    (
        "policy_loss",
        "loss_of_mean",
        r"gave a tensor of shape \[\] as loss_N; it must give a tensor of shape \[3\] there",
    ),
    ("policy_loss", "loss_too_short", r"gave a tensor of shape \[2\] as loss_N"),
    ("policy_loss", "loss_in_columns", r"gave a tensor of shape \[3, 1\] as loss_N"),
    ("policy_loss", "loss_detached", r"gave loss_N without a gradient"),
    (
        "policy_loss",
        "bare_loss",
        r"gave a tensor of shape \[3\]; it must give a `agentrl.algorithms.policy_loss.PolicyLoss`",
    ),
    ("policy_loss", "short_ratio", r"gave a tensor of shape \[2\] as ratio_N"),
    ("policy_loss", "short_clipped", r"gave a tensor of shape \[2\] as clipped_low_N"),
    ("policy_loss", "short_high", r"gave a tensor of shape \[2\] as clipped_high_N"),
    ("policy_loss", "short_dual", r"gave a tensor of shape \[2\] as clipped_dual_N"),
    ("aggregation", "weights_in_columns", r"gave a tensor of shape \[3, 1\] as its result"),
    ("aggregation", "one_weight", r"gave a float as its result"),
    ("aggregation", "weights_of_the_first", r"gave a tensor of shape \[1\] as its result; .* shape \[0\] there"),
    ("kl_estimator", "kl_in_columns", r"gave a tensor of shape \[3, 1\] as its result"),
    ("kl_estimator", "mean_kl", r"gave a tensor of shape \[\] as its result"),
    ("kl_estimator", "kl_detached", r"gave its result without a gradient"),
    (
        "advantage",
        "advantages_of_one_group",
        r"gave a list; it must give a list with the advantages of each of 2 groups",
    ),
    ("advantage", "advantages_twice", r"gave a tensor of shape \[6\] as group 0; .* shape \[3\]"),
    ("advantage", "advantages_as_lists", r"gave a list as group 0"),
    ("advantage", "one_credit", r"gave a tensor of shape \[1\] as advantages_N"),
    (
        "advantage",
        "bare_credit",
        r"gave a tensor of shape \[3\]; it must give a `.*TokenCredit`",
    ),
    ("advantage", "needs_values", r"which uses values, and there is no critic; name its model in `critic.path`"),
    ("advantage", "has_estimate", r"which has an `estimate` and is no `TokenAdvantage`; make it one"),
]


def check(key: str, name: str, *, has_critic: bool = False) -> list[str]:
    settings: dict[str, Any] = {key: f"{__name__}.{name}"}
    algorithm = AlgorithmSection(kl_coefficient=0.1, **settings)
    return check_algorithm_functions(algorithm, has_critic=has_critic)


@pytest.mark.parametrize(("key", "name", "message"), WRONG, ids=[name for _, name, _ in WRONG])
def test_an_invalid_result_is_refused_before_anything_starts(key: str, name: str, message: str):
    with pytest.raises(ConfigError, match=rf"`algorithm\.{key}`(:| is) `{__name__}\.{name}`,? {message}"):
        check(key, name)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("policy_loss", "right_loss"),
        ("aggregation", "right_weights"),
        ("kl_estimator", "right_kl"),
        ("advantage", "right_advantages"),
        ("advantage", "right_credit"),
    ],
)
def test_valid_functions_give_no_warning(key: str, name: str):
    assert check(key, name) == []


def test_an_estimator_that_uses_values_needs_a_critic():
    check("advantage", "needs_values", has_critic=True)
    with pytest.raises(ConfigError, match=r"gave a tensor of shape \[2\] as returns_N"):
        check("advantage", "short_returns", has_critic=True)


def test_a_critic_without_returns_to_learn_is_refused():
    check("advantage", "advantages_over_deviation")
    with pytest.raises(
        ConfigError, match=r"`critic\.path` names a critic, but .*over_deviation`, .* no returns to learn"
    ):
        check("advantage", "advantages_over_deviation", has_critic=True)


def test_functions_are_tried_as_they_are_used():
    """A KL estimate in the reward needs no gradient, and groups of equal rewards are dropped before."""
    settings: dict[str, Any] = {
        "kl_estimator": f"{__name__}.kl_detached",
        "advantage": f"{__name__}.advantages_over_deviation",
    }
    check_algorithm_functions(AlgorithmSection(kl_coefficient=0.1, kl_in="reward", **settings), has_critic=False)


def test_a_function_that_raises_in_the_trial_gives_a_warning():
    of_three, of_none = check("kl_estimator", "kl_that_fails")
    path = f"{__name__}.kl_that_fails"
    assert re.fullmatch(
        rf"`algorithm\.kl_estimator`: `{re.escape(path)}`, tried on 3 made-up tokens of the CPU, raised RuntimeError at "
        rf"{Path(__file__).name}:\d+: needs a GPU",
        of_three,
    )
    assert "tried on 0 made-up tokens" in of_none


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("policy_loss", "loss_of_nan"),
        ("aggregation", "weights_of_nan"),
        ("kl_estimator", "kl_of_nan"),
        ("advantage", "advantages_of_nan"),
        ("advantage", "credit_of_nan"),
    ],
)
def test_nan_in_the_trial_gives_a_warning(key: str, name: str):
    [message] = check(key, name)
    assert message == (
        f"`algorithm.{key}`: `{__name__}.{name}`, tried on 3 made-up tokens of the CPU, gave nan or infinity, which ends a "
        "run that meets it in an update"
    )


def call_in_an_update(key: str, name: str) -> None:
    """Call a function as an update does, on finite numbers."""
    path, logprobs_N = f"{__name__}.{name}", LOGPROBS_N.clone().requires_grad_()
    match key:
        case "policy_loss":
            clip = ClipRange(low=0.2, high=0.2)
            user_functions.policy_loss(path)(logprobs_N, LOGPROBS_N, torch.ones(3), TRAJECTORY_N, clip)
        case "aggregation":
            user_functions.aggregation(path)(TRAJECTORY_N, mean_length=1.5, max_length=8)
        case "kl_estimator":
            user_functions.kl_estimator(path)(logprobs_N, LOGPROBS_N)
        case _:
            estimator = user_functions.advantage(path)
            if isinstance(estimator, TokenAdvantage):
                estimator.estimate(torch.ones(3), None, discount=1.0, gae_lambda=1.0)
            else:
                estimator([torch.ones(3)], normalise_by_std=True)


@pytest.mark.parametrize(
    ("key", "name", "part"),
    [
        ("policy_loss", "loss_of_nan", "loss_N"),
        ("aggregation", "weights_of_nan", "its result"),
        ("kl_estimator", "kl_of_nan", "its result"),
        ("advantage", "advantages_of_nan", "group 0"),
        ("advantage", "credit_of_nan", "advantages_N"),
    ],
)
def test_nan_in_an_update_is_refused(key: str, name: str, part: str):
    with pytest.raises(ConfigError, match=rf"`{__name__}\.{name}` gave nan or infinity in {part}, of finite numbers"):
        call_in_an_update(key, name)


def test_results_are_checked_in_every_update():
    loss = user_functions.policy_loss(f"{__name__}.loss_of_mean")
    clip = ClipRange(low=0.2, high=0.2)
    with pytest.raises(ConfigError, match=r"gave a tensor of shape \[\] as loss_N"):
        loss(LOGPROBS_N.clone().requires_grad_(), LOGPROBS_N, torch.ones(3), TRAJECTORY_N, clip)


def test_nan_in_the_inputs_is_not_refused():
    spoilt_N = torch.tensor([-1.0, math.nan, -0.5])
    assert user_functions.kl_estimator(f"{__name__}.right_kl")(spoilt_N, LOGPROBS_N).isnan().any()


def test_built_in_functions_are_not_wrapped():
    assert user_functions.policy_loss("ppo") is ppo_loss
    assert user_functions.kl_estimator("k2") is k2
    assert user_functions.advantage("grpo") is grpo
