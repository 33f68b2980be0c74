import math

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.policy_loss import POLICY_LOSSES, ClipRange, cispo_loss, gspo_loss, ppo_loss

CLIP = ClipRange(low=0.2, high=0.28)


def one_token(ratio: float, advantage: float, clip: ClipRange = CLIP) -> tuple[float, float, str]:
    """Return the loss of one token, its gradient by the log-probability, and the bounds that clipped it."""
    logprobs = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    zeros, advantages = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    result = ppo_loss(logprobs, zeros, advantages, torch.tensor([0]), clip)
    result.loss_N.sum().backward()
    assert logprobs.grad is not None
    bounds = {"low": result.clipped_low_N, "high": result.clipped_high_N, "dual": result.clipped_dual_N}
    by = " ".join(bound for bound, clipped_N in bounds.items() if clipped_N is not None and clipped_N.item())
    assert result.clipped_N.item() == bool(by)
    return result.loss_N.item(), logprobs.grad.item(), by


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped_by"),
    [
        (1.0, 2.0, -2.0, -2.0, ""),
        (1.27, 1.0, -1.27, -1.27, ""),
        (1.5, 1.0, -1.28, 0.0, "high"),  # clip-higher
        (0.5, 1.0, -0.5, -0.5, ""),  # a bad ratio with a good advantage may be raised
        (1.5, -1.0, 1.5, 1.5, ""),
        (0.5, -1.0, 0.8, 0.0, "low"),
    ],
)
def test_the_loss_of_a_token_matches_the_closed_form(
    ratio: float, advantage: float, loss: float, gradient: float, clipped_by: str
):
    assert one_token(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), clipped_by)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped_by"),
    [
        (2.9, -1.0, 2.9, 2.9, ""),
        (5.0, -1.0, 3.0, 0.0, "dual"),
        (5.0, 1.0, -1.28, 0.0, "high"),
        (0.5, -1.0, 0.8, 0.0, "low"),
    ],
)
def test_dual_clip_bounds_the_loss_of_a_token_with_negative_advantage(
    ratio: float, advantage: float, loss: float, gradient: float, clipped_by: str
):
    clip = ClipRange(low=0.2, high=0.28, dual=3.0)
    assert one_token(ratio, advantage, clip) == (pytest.approx(loss), pytest.approx(gradient), clipped_by)


def packed(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-probabilities, old ones, advantages and trajectory numbers of three trajectories (2, 5 and 1 tokens)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([2, 5, 1])
    logprobs, old = (torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(2))
    advantages = torch.randn(3, generator=generator, dtype=torch.float64).repeat_interleave(lengths)
    return logprobs.requires_grad_(True), old, advantages, torch.arange(3).repeat_interleave(lengths)


def test_gspo_uses_the_mean_log_ratio_of_a_trajectory_for_all_its_tokens():
    logprobs, old, advantages, trajectory = packed()
    result = gspo_loss(logprobs, old, advantages, trajectory, ClipRange(low=0.9, high=100.0))
    for number in range(3):
        members = trajectory == number
        ratio = (logprobs - old)[members].mean().exp().item()
        expected = (
            -advantages[members] * max(ratio, 0.1) if advantages[members][0] < 0 else -advantages[members] * ratio
        )
        torch.testing.assert_close(result.loss_N[members].detach(), expected.detach())


def test_cispo_clips_the_weight_and_keeps_the_gradient_of_every_token():
    logprobs, old, advantages, trajectory = packed()
    result = cispo_loss(logprobs, old, advantages, trajectory, ClipRange(low=0.4, high=0.1))
    (gradient,) = torch.autograd.grad(result.loss_N.sum(), logprobs)
    ratio = (logprobs - old).exp().detach()
    torch.testing.assert_close(gradient, -advantages * ratio.clamp(min=0.6, max=1.1))
    assert result.clipped_low_N.tolist() == (ratio < 0.6).tolist()
    assert result.clipped_high_N.tolist() == (ratio > 1.1).tolist()
    assert result.clipped_low_N.any()
    assert result.clipped_high_N.any()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_token_with_advantage_zero_is_not_clipped(name: str):
    """Such a token has no gradient, and TRL does not count it as clipped either."""
    logprobs = torch.tensor([-2.0, 2.0])
    clip = ClipRange(low=0.2, high=0.28, dual=3.0)
    for zero in (0.0, -0.0):
        result = POLICY_LOSSES[name](logprobs, torch.zeros(2), torch.full([2], zero), torch.arange(2), clip)
        assert not result.clipped_N.any()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_no_tokens_give_no_loss(name: str):
    nothing = torch.empty(0)
    result = POLICY_LOSSES[name](nothing, nothing, nothing, nothing.long(), CLIP)
    assert result.loss_N.sum().item() == 0.0


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("far", [95.0, -95.0, 1e30])
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_token_far_from_the_policy_before_the_update_has_a_finite_loss_and_gradient(
    name: str, far: float, advantage: float
):
    logprobs = torch.tensor([far, -1.0], requires_grad=True)
    advantages = torch.full([2], advantage)
    result = POLICY_LOSSES[name](logprobs, torch.tensor([0.0, -1.0]), advantages, torch.arange(2), CLIP)
    result.loss_N.sum().backward()
    assert logprobs.grad is not None
    assert result.loss_N.isfinite().all()
    assert logprobs.grad.isfinite().all()
    assert result.ratio_N.tolist() == pytest.approx([math.exp(math.copysign(20.0, far)), 1.0])
