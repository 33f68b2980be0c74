"""Custom algorithm functions with invalid results: refused with key and name, before anything is trained on them."""

from collections.abc import Callable
from dataclasses import replace
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


right_loss = loss_with(lambda loss: loss)
loss_of_mean = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N.mean()))
loss_too_short = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N[:-1]))
loss_in_columns = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N[:, None]))
loss_detached = loss_with(lambda loss: replace(loss, loss_N=loss.loss_N.detach()))
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


def right_advantages(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return grpo(groups, normalise_by_std=normalise_by_std)


def advantages_of_one_group(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return grpo(groups[:1], normalise_by_std=normalise_by_std)


def advantages_twice(groups: list[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    return [rewards_G.repeat(2) for rewards_G in groups]


def advantages_as_lists(groups: list[Tensor], *, normalise_by_std: bool) -> list[list[float]]:
    return [rewards_G.tolist() for rewards_G in groups]


right_credit = credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N, returns_N=rewards_N))
one_credit = credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N.sum()[None], returns_N=rewards_N))
short_returns = replace(
    credit_with(lambda rewards_N: TokenCredit(advantages_N=rewards_N, returns_N=rewards_N[1:])), uses_values=True
)
bare_credit = credit_with(lambda rewards_N: rewards_N)
needs_values = TokenAdvantage(estimate=right_credit.estimate, uses_values=True)

LOSS_TYPE, CREDIT_TYPE = (
    r"`agentrl\.algorithms\.policy_loss\.PolicyLoss`",
    r"`agentrl\.algorithms\.token_advantage\.TokenCredit`",
)
WRONG = [
    ("policy_loss", "loss_of_mean", r"gave loss_N as a tensor of shape \[\]; it must be a tensor of shape \[3\]"),
    ("policy_loss", "loss_too_short", r"gave loss_N as a tensor of shape \[2\]"),
    ("policy_loss", "loss_in_columns", r"gave loss_N as a tensor of shape \[3, 1\]"),
    ("policy_loss", "loss_detached", r"gave loss_N without a gradient"),
    ("policy_loss", "bare_loss", rf"gave a Tensor; it must give a {LOSS_TYPE}"),
    ("policy_loss", "short_ratio", r"gave ratio_N as a tensor of shape \[2\]"),
    ("policy_loss", "short_clipped", r"gave clipped_low_N as a tensor of shape \[2\]"),
    ("policy_loss", "short_high", r"gave clipped_high_N as a tensor of shape \[2\]"),
    ("policy_loss", "short_dual", r"gave clipped_dual_N as a tensor of shape \[2\]"),
    ("aggregation", "weights_in_columns", r"gave its result as a tensor of shape \[3, 1\]"),
    ("aggregation", "one_weight", r"gave its result as a float"),
    ("kl_estimator", "kl_in_columns", r"gave its result as a tensor of shape \[3, 1\]"),
    ("kl_estimator", "mean_kl", r"gave its result as a tensor of shape \[\]"),
    ("kl_estimator", "kl_detached", r"gave its result without a gradient"),
    ("advantage", "advantages_of_one_group", r"must give a list with the advantages of each of 2 groups"),
    ("advantage", "advantages_twice", r"gave a group as a tensor of shape \[6\]; .* shape \[3\]"),
    ("advantage", "advantages_as_lists", r"gave a group as a list"),
    ("advantage", "one_credit", r"gave advantages_N as a tensor of shape \[1\]"),
    ("advantage", "short_returns", r"gave returns_N as a tensor of shape \[2\]"),
    ("advantage", "bare_credit", rf"gave a Tensor; it must give a {CREDIT_TYPE}"),
]


def call(key: str, name: str) -> Any:
    """Call a function as an update does."""
    path, logprobs_N = f"{__name__}.{name}", LOGPROBS_N.clone().requires_grad_()
    match key:
        case "policy_loss":
            clip = ClipRange(low=0.2, high=0.2)
            return user_functions.policy_loss(path)(logprobs_N, LOGPROBS_N, torch.ones(3), TRAJECTORY_N, clip)
        case "aggregation":
            return user_functions.aggregation(path)(TRAJECTORY_N, mean_length=1.5, max_length=8)
        case "kl_estimator":
            return user_functions.kl_estimator(path)(logprobs_N, LOGPROBS_N)
        case _:
            estimator = user_functions.advantage(path)
            if isinstance(estimator, TokenAdvantage):
                return estimator.estimate(torch.ones(3), None, discount=1.0, gae_lambda=1.0)
            return estimator([torch.linspace(0.0, 1.0, 3), torch.tensor([1.0, 0.0])], normalise_by_std=True)


@pytest.mark.parametrize(("key", "name", "message"), WRONG, ids=[name for _, name, _ in WRONG])
def test_an_invalid_result_is_refused_at_the_call(key: str, name: str, message: str):
    with pytest.raises(ConfigError, match=rf"`algorithm\.{key}`: `{__name__}\.{name}` {message}"):
        call(key, name)


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
def test_valid_functions_are_called_and_accepted_before_the_start(key: str, name: str):
    assert call(key, name) is not None
    check(key, name)


def check(key: str, name: str, *, has_critic: bool = False) -> None:
    settings: dict[str, Any] = {key: f"{__name__}.{name}"}
    check_algorithm_functions(AlgorithmSection(kl_coefficient=0.1, **settings), has_critic=has_critic)


def test_an_estimator_that_uses_values_needs_a_critic():
    check("advantage", "needs_values", has_critic=True)
    with pytest.raises(
        ConfigError, match=r"which uses values, and there is no critic; name its model in `critic\.path`"
    ):
        check("advantage", "needs_values")


def test_a_critic_without_returns_to_learn_is_refused():
    check("advantage", "right_advantages")
    with pytest.raises(
        ConfigError, match=r"`critic\.path` names a critic, but .*right_advantages`, .* no returns to learn"
    ):
        check("advantage", "right_advantages", has_critic=True)


def test_an_estimate_in_the_reward_needs_no_gradient():
    kl_N = user_functions.kl_estimator(f"{__name__}.kl_detached")(LOGPROBS_N, LOGPROBS_N)
    assert not kl_N.requires_grad


def test_built_in_functions_are_not_wrapped():
    assert user_functions.policy_loss("ppo") is ppo_loss
    assert user_functions.kl_estimator("k2") is k2
    assert user_functions.advantage("grpo") is grpo
