"""Losses and aggregations beside TRL's own code, values and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor
from trl_reference import trl_loss

from agentrl.algorithms.aggregation import aggregation_weights
from agentrl.algorithms.kl_divergence import kl_estimate
from agentrl.algorithms.policy_loss import POLICY_LOSSES, ClipRange

pytestmark = pytest.mark.slow  # importing TRL's trainer takes longer than the tests


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four responses of at most 12 tokens, with observations inside of them."""
    generator = torch.Generator().manual_seed(1)
    logprobs, old = (-torch.rand(4, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = (torch.rand(4, 12, generator=generator) < 0.7).long()
    mask[1, 4:] = 0
    return logprobs.requires_grad_(True), old, torch.randn(4, generator=generator, dtype=torch.float64), mask


def our_loss(name: str, clip: ClipRange, aggregation: str, *, kl_coefficient: float = 0.0) -> tuple[Tensor, Tensor]:
    """Our loss and its gradient, from the packed form of `batch`."""
    logprobs_BT, old_BT, advantages_B, mask_BT = batch()
    sampled = mask_BT.bool()
    trajectory = torch.arange(4)[:, None].expand_as(mask_BT)[sampled]
    logprobs, old = logprobs_BT[sampled], old_BT[sampled]
    loss = POLICY_LOSSES[name](logprobs, old, advantages_B[trajectory], trajectory, clip).loss_N
    loss = loss + kl_coefficient * kl_estimate(logprobs, old, "k3")
    if aggregation != "token_mean":
        weights = aggregation_weights(
            trajectory,
            method=aggregation,  # type: ignore[arg-type]
            mean_length=len(trajectory) / 4,
            max_length=12,
        )
        loss = loss * weights.double()
    value = loss.sum() / len(trajectory)
    return value, torch.autograd.grad(value, logprobs_BT)[0]


@pytest.mark.parametrize(
    ("name", "clip", "aggregation", "theirs"),
    [
        ("ppo", ClipRange(low=0.2, high=0.28), "token_mean", {"loss_type": "bnpo"}),
        ("ppo", ClipRange(low=0.2, high=0.28), "trajectory_mean", {"loss_type": "grpo"}),
        ("ppo", ClipRange(low=0.2, high=0.28), "fixed_length", {"loss_type": "dr_grpo"}),
        ("ppo", ClipRange(low=0.2, high=0.28, dual=1.5), "token_mean", {"loss_type": "bnpo", "delta": 1.5}),
        (
            "gspo",
            ClipRange(low=0.05, high=0.05),
            "trajectory_mean",
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.05},
        ),
        ("cispo", ClipRange(low=1.0, high=0.3), "token_mean", {"loss_type": "cispo", "epsilon_high": 1.3}),
    ],
)
def test_loss_and_gradient_are_trls(name: str, clip: ClipRange, aggregation: str, theirs: dict[str, Any]):
    loss, gradient = our_loss(name, clip, aggregation)
    logprobs, old, advantages, mask = batch()
    expected = trl_loss(logprobs, old, advantages, mask, **theirs)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0], rtol=1e-6, atol=1e-9)


def test_the_divergence_in_the_loss_is_trls():
    loss, gradient = our_loss("ppo", ClipRange(low=0.2, high=0.28), "token_mean", kl_coefficient=0.3)
    logprobs, old, advantages, mask = batch()
    expected = trl_loss(logprobs, old, advantages, mask, loss_type="bnpo", beta=0.3)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0], rtol=1e-6, atol=1e-9)
