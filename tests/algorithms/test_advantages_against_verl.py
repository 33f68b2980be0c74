"""Advantages, value loss, KL and importance weights compared with verl's values (`record_verl`)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from random_batches import SIZES, random_batch
from torch import Tensor

from agentrl.algorithms.advantage import ADVANTAGES
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS, k1
from agentrl.algorithms.policy_loss import ClipRange, ppo_loss
from agentrl.algorithms.rollout_correction import rollout_weights
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES, normalised, token_rewards
from agentrl.algorithms.value_loss import value_loss

VERL: dict[str, Any] = json.loads(Path(__file__).with_name("verl_values.json").read_text())

pytestmark = pytest.mark.parametrize("size", SIZES)


def assert_equals_verl(ours: Tensor, size: str, name: str) -> None:
    expected = torch.tensor(VERL[size][name], dtype=torch.float64)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_kl_estimates_match_verl(size: str, estimator: str):
    batch = random_batch(size)
    assert_equals_verl(
        KL_ESTIMATORS[estimator](batch.old_BT[batch.mask_BT], batch.ref_BT[batch.mask_BT]), size, estimator
    )


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_token_advantages_with_kl_in_the_reward_match_verl(size: str, name: str):
    batch = random_batch(size)
    rows = zip(*(batch.rows(values) for values in (batch.old_BT, batch.ref_BT, batch.values_BT)), strict=True)
    credits = []
    for reward, (old, ref, values) in zip(batch.rewards_B.tolist(), rows, strict=True):
        rewards_N = token_rewards(reward, k1(old, ref), kl_coefficient=0.1)
        credits.append(TOKEN_ADVANTAGES[name].estimate(rewards_N, values, discount=0.97, gae_lambda=0.9))
    advantages = normalised([credit.advantages_N for credit in credits], add_up=lambda numbers: numbers)
    assert_equals_verl(torch.cat(advantages), size, name)
    if name == "gae":
        assert_equals_verl(torch.cat([credit.returns_N for credit in credits]), size, "returns")


@pytest.mark.parametrize(
    ("name", "normalise_by_std", "theirs"),
    [("grpo", True, "grpo"), ("grpo", False, "dr_grpo"), ("rloo", False, "rloo")],
)
def test_group_advantages_match_verl(size: str, name: str, normalise_by_std: bool, theirs: str):
    batch = random_batch(size)
    groups = batch.rewards_B.split(batch.sizes)
    assert_equals_verl(torch.cat(ADVANTAGES[name](groups, normalise_by_std=normalise_by_std)), size, theirs)


def test_reinforce_plus_plus_baseline_matches_verl(size: str):
    batch = random_batch(size)
    centred = ADVANTAGES["reinforce_plus_plus_baseline"](batch.rewards_B.split(batch.sizes), normalise_by_std=True)
    of_tokens = [
        advantage.expand(len(row)) for advantage, row in zip(torch.cat(centred), batch.rows(batch.old_BT), strict=True)
    ]
    advantages = normalised(of_tokens, add_up=lambda numbers: numbers)
    assert_equals_verl(torch.stack([row[0] for row in advantages]), size, "reinforce_plus_plus_baseline")


@pytest.mark.parametrize(("method", "min_ratio"), [("truncate", 0.5), ("mask", 0.8)])
@pytest.mark.parametrize(("level", "theirs"), [("token", "token"), ("trajectory", "sequence")])
def test_importance_weights_match_verl(size: str, level: Any, theirs: str, method: Any, min_ratio: float):
    batch = random_batch(size)
    old, rollout = batch.old_BT[batch.mask_BT], batch.rollout_BT[batch.mask_BT]
    weights, is_cut = rollout_weights(
        old, rollout, batch.trajectory_N, method=method, level=level, min_ratio=min_ratio, max_ratio=1.2
    )
    assert_equals_verl(weights, size, f"{theirs}_{method}")
    assert 0 < is_cut.sum().item() < len(old)


def test_policy_loss_and_gradient_match_verl_for_tokens_far_from_the_old_policy(size: str):
    batch = random_batch(size)
    logprobs = batch.far_logprobs_BT[batch.mask_BT].requires_grad_(True)
    advantages, clip = batch.advantages_B[batch.trajectory_N], ClipRange(low=0.2, high=0.28)
    loss = ppo_loss(logprobs, batch.old_BT[batch.mask_BT], advantages, batch.trajectory_N, clip).loss_N.mean()
    assert loss.item() == pytest.approx(VERL[size]["far_policy_loss"], rel=1e-9)
    assert_equals_verl(torch.autograd.grad(loss, logprobs)[0], size, "far_policy_gradient")


def test_clipped_value_loss_matches_verl(size: str):
    batch = random_batch(size)
    returns = torch.tensor(VERL[size]["returns"], dtype=torch.float64)
    loss, is_clipped = value_loss(batch.new_values_BT[batch.mask_BT], batch.values_BT[batch.mask_BT], returns, clip=0.2)
    assert loss.mean().item() == pytest.approx(VERL[size]["value_loss"], rel=1e-6)
    assert is_clipped.double().mean().item() == pytest.approx(VERL[size]["value_clipped"], rel=1e-6)
    assert 0 < VERL[size]["value_clipped"] < 1
