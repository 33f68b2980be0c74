import math

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.policy_loss import clipped_policy_loss, kl_k3


def loss_of(ratio: float, advantage: float) -> tuple[float, float, int]:
    """Loss, gradient with respect to the log-probability, and number of clipped tokens, for one token."""
    logprobs = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    zeros, advantages = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    result = clipped_policy_loss(logprobs, zeros, advantages, clip_low=0.2, clip_high=0.28)
    result.loss_sum.backward()
    assert logprobs.grad is not None
    return result.loss_sum.item(), logprobs.grad.item(), int(result.num_clipped.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.27, 1.0, -1.27, -1.27, 0),
        (1.5, 1.0, -1.28, 0.0, 1),  # clip-higher
        (0.5, 1.0, -0.5, -0.5, 0),  # a bad ratio with a good advantage may be raised
        (1.5, -1.0, 1.5, 1.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
    ],
)
def test_the_loss_of_one_token_is_the_closed_form(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
):
    assert loss_of(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), clipped)


def trl_per_token_loss(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """The formula of `GRPOTrainer._compute_loss` in TRL (loss_type `dapo`, before its division)."""
    coef_1 = torch.exp(logprobs - old)
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.28)
    return -torch.min(coef_1 * advantages, coef_2 * advantages)


def test_the_loss_is_trls():
    generator = torch.Generator().manual_seed(0)
    logprobs, old, advantages = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(3))
    logprobs.requires_grad_(True)
    ours = clipped_policy_loss(logprobs, old, advantages, clip_low=0.2, clip_high=0.28)
    theirs = trl_per_token_loss(logprobs, old, advantages).sum()
    assert ours.loss_sum.item() == pytest.approx(theirs.item(), rel=1e-12)
    (our_gradient,) = torch.autograd.grad(ours.loss_sum, logprobs)
    (their_gradient,) = torch.autograd.grad(theirs, logprobs)
    torch.testing.assert_close(our_gradient, their_gradient)
    assert ours.ratio_max.item() == pytest.approx((logprobs - old).exp().max().item())


def test_k3_is_the_exact_divergence_in_expectation():
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    other = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (policy * (policy / other).log()).sum()
    estimates = kl_k3(policy.log(), other.log())
    assert (policy * estimates).sum().item() == pytest.approx(exact.item(), rel=1e-12)
    assert (estimates >= 0).all()


def test_weights_multiply_the_loss_of_their_tokens():
    logprobs = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64, requires_grad=True)
    old, advantages = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    weights = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    weighed = clipped_policy_loss(logprobs, old, advantages, weights_N=weights, clip_low=0.2, clip_high=0.28)
    alone = [
        clipped_policy_loss(logprobs[i : i + 1], old[:1], advantages[i : i + 1], clip_low=0.2, clip_high=0.28).loss_sum
        for i in range(3)
    ]
    assert weighed.loss_sum.item() == pytest.approx(0.5 * alone[0].item() + 2.0 * alone[1].item())


def test_no_tokens_add_nothing():
    nothing = torch.empty(0)
    loss = clipped_policy_loss(nothing, nothing, nothing, clip_low=0.2, clip_high=0.28)
    assert (loss.loss_sum.item(), loss.ratio_max.item()) == (0, 0)
