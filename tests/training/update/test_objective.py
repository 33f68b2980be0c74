"""The loss of a few tokens, compared with sums written out by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.aggregation import AGGREGATIONS
from agentrl.algorithms.policy_loss import PolicyLoss, ppo_loss
from agentrl.config.schema.algorithm import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.scoring.token_logprobs import TokenScores
from agentrl.training.update.objective import Objective
from agentrl.training.update.tally import TokenTally

TRAJECTORY = torch.tensor([0, 0, 0, 1])
ADVANTAGES = torch.tensor([1.0, 1.0, 1.0, -2.0])
LOGPROBS = torch.tensor([-1.0, -2.0, -0.5, -3.0])
REFERENCE = torch.tensor([-1.5, -1.0, -0.5, -2.0])


class Sums(TokenTally):
    """Tally that a test can read."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}

    def add(self, **sums: Tensor) -> None:
        self.values |= {name: value.item() for name, value in sums.items()}


def loss_of(logprobs_N: Tensor, *, advantages_N: Tensor = ADVANTAGES, **algorithm: Any) -> tuple[Tensor, Sums]:
    """Return the loss summed over four tokens, on-policy, so that the loss of a token is its negative advantage."""
    section, sums = AlgorithmSection(**algorithm), Sums()
    batch = SimpleNamespace(
        trajectory_N=TRAJECTORY,
        advantages_N=advantages_N,
        rollout_logprobs_N=logprobs_N.detach(),
        reference_logprobs_N=REFERENCE,
    )
    loss = Objective(section, max_response_tokens=8).loss(
        cast(MicroBatch, batch),
        TokenScores(logprobs_N=logprobs_N, entropy_N=torch.zeros(4)),
        old_logprobs_N=logprobs_N.detach(),
        mean_length=2.0,
        kl_coefficient=section.kl_coefficient,
        tally=sums,
    )
    return loss, sums


def doubled_in_the_first(trajectory_N: Tensor, *, mean_length: float, max_length: int) -> Tensor:
    return torch.where(trajectory_N == 0, 2.0 * max_length, mean_length)


def absolute(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return (logprobs_N - other_logprobs_N).abs()


def test_a_custom_aggregation_weighs_tokens():
    loss, sums = loss_of(LOGPROBS, aggregation=f"{__name__}.doubled_in_the_first")
    assert loss.item() == sums.values["loss"] == pytest.approx(16.0 * -3.0 + 2.0 * 2.0)
    assert loss_of(LOGPROBS)[0].item() == pytest.approx(-3.0 + 2.0)


def mean_loss(*values: Any) -> PolicyLoss:
    loss = ppo_loss(*values)
    return replace(loss, loss_N=loss.loss_N.mean())


def loss_in_columns(*values: Any) -> PolicyLoss:
    loss = ppo_loss(*values)
    return replace(loss, loss_N=loss.loss_N[:, None])


def loss_detached(*values: Any) -> PolicyLoss:
    loss = ppo_loss(*values)
    return replace(loss, loss_N=loss.loss_N.detach())


def loss_alone(*values: Any) -> Tensor:
    return ppo_loss(*values).loss_N


def weights_in_columns(trajectory_N: Tensor, *, mean_length: float, max_length: int) -> Tensor:
    return torch.ones(len(trajectory_N), 1)


def one_weight(trajectory_N: Tensor, *, mean_length: float, max_length: int) -> float:
    return 0.5


def mean_difference(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return (logprobs_N - other_logprobs_N).mean()


def difference_detached(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    return (logprobs_N - other_logprobs_N).detach()


@pytest.mark.parametrize(
    ("key", "name", "problem"),
    [
        ("policy_loss", "mean_loss", r"a tensor of shape \[\]; it must be a tensor of shape \[4\]"),
        ("policy_loss", "loss_in_columns", r"a tensor of shape \[4, 1\]"),
        ("policy_loss", "loss_detached", "a result without a gradient"),
        ("policy_loss", "loss_alone", "a Tensor; return a `PolicyLoss`"),
        ("aggregation", "weights_in_columns", r"a tensor of shape \[4, 1\]"),
        ("aggregation", "one_weight", "a float"),
        ("kl_estimator", "mean_difference", r"a tensor of shape \[\]"),
        ("kl_estimator", "difference_detached", "a result without a gradient"),
    ],
)
def test_a_result_that_would_be_broadcast_or_has_no_gradient_is_refused(key: str, name: str, problem: str):
    algorithm: dict[str, Any] = {"kl_coefficient": 0.1, key: f"{__name__}.{name}"}
    with pytest.raises(ConfigError, match=rf"`algorithm\.{key}`: `.*\.{name}` gave {problem}"):
        loss_of(LOGPROBS.clone().requires_grad_(True), **algorithm)


def test_an_estimate_in_the_reward_needs_no_gradient():
    algorithm: dict[str, Any] = {"kl_coefficient": 0.1, "kl_in": "reward"}
    detached = f"{__name__}.difference_detached"
    loss_of(LOGPROBS.clone().requires_grad_(True), **algorithm, kl_estimator=detached)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_an_aggregation_by_its_path_equals_that_by_its_name(name: str):
    by_path = loss_of(LOGPROBS, aggregation=f"agentrl.algorithms.aggregation.{name}")[0]
    assert by_path.item() == loss_of(LOGPROBS, aggregation=name)[0].item()


def test_a_custom_kl_estimator_is_used_in_the_loss():
    logprobs = LOGPROBS.clone().requires_grad_(True)
    loss, sums = loss_of(logprobs, kl_coefficient=0.5, kl_estimator=f"{__name__}.absolute")
    assert sums.values["kl_reference"] == pytest.approx(0.5 + 1.0 + 0.0 + 1.0)
    assert loss.item() == pytest.approx(-1.0 + 0.5 * 2.5)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, -ADVANTAGES + 0.5 * torch.tensor([1.0, -1.0, 0.0, -1.0]))


def test_the_gradient_of_k1_in_the_loss_is_the_coefficient_times_that_of_the_logprobs():
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, generator=draws).requires_grad_(True)
    tokens = torch.tensor([0, 3, 5, 3])
    logprobs = logits.log_softmax(1)[torch.arange(4), tokens]
    loss, sums = loss_of(logprobs, advantages_N=torch.zeros(4), kl_coefficient=0.3, kl_estimator="k1")
    (gradient,) = torch.autograd.grad(loss, logits)
    one_hot = torch.nn.functional.one_hot(tokens, 6)
    torch.testing.assert_close(gradient, 0.3 * (one_hot - logits.softmax(1)).detach())
    divergence = (logprobs - REFERENCE).sum().item()
    assert sums.values["kl_reference"] == pytest.approx(divergence)
    assert sums.values["loss"] == pytest.approx(0.3 * divergence)
