"""Script that writes `verl_values.json`: verl's results on the batches of `random_batches`.

verl and agentrl cannot share an environment, so it needs its own:

    python -m venv /tmp/verl && /tmp/verl/bin/pip install torch numpy omegaconf && \
        /tmp/verl/bin/pip install --no-deps verl==0.9.1 tensordict pyvers codetiming
    /tmp/verl/bin/python tests/algorithms/record_verl.py
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from random_batches import SIZES, RandomBatch, random_batch
from torch import Tensor
from verl.trainer.ppo import core_algos, rollout_corr_helper  # pyright: ignore[reportMissingImports]


def main() -> None:
    content: dict[str, Any] = {size: values_of(random_batch(size)) for size in SIZES}
    controller = core_algos.AdaptiveKLController(0.1, 6.0, 1000)
    coefficients = []
    for divergence_seen in (9.0, 6.3, 2.0):
        controller.update(divergence_seen, 64)
        coefficients.append(float(controller.value))
    content["kl_coefficients"] = coefficients
    Path(__file__).with_name("verl_values.json").write_text(json.dumps(content) + "\n")


def values_of(batch: RandomBatch) -> dict[str, Any]:
    """Return named results, with one number per trajectory or per sampled token of the batch."""
    tokens = {**divergences(batch), **token_advantages(batch), **rollout_weights(batch)}
    whole = group_advantages(batch)
    value_loss, clipped = core_algos.compute_value_loss(
        batch.new_values_BT, tokens["returns"], batch.values_BT, batch.mask_BT.double(), 0.2
    )
    policy_loss, gradient = far_policy_loss(batch)
    return {
        **{name: rounded(values_BT[batch.mask_BT]) for name, values_BT in tokens.items()},
        **{name: rounded(values_BT[:, 0]) for name, values_BT in whole.items()},
        "value_loss": value_loss.item(),
        "value_clipped": clipped.item(),
        "far_policy_loss": policy_loss.item(),
        "far_policy_gradient": rounded(gradient[batch.mask_BT]),
    }


def rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.10g}") for value in values.double().tolist()]


def divergences(batch: RandomBatch) -> dict[str, Tensor]:
    return {name: core_algos.kl_penalty(batch.old_BT, batch.ref_BT, name) for name in ("k1", "k2", "k3")}


def token_rewards(batch: RandomBatch, *, kl_coefficient: float) -> Tensor:
    rewards = -kl_coefficient * (batch.old_BT - batch.ref_BT) * batch.mask_BT
    for row, sampled in enumerate(batch.mask_BT):
        rewards[row, int(sampled.nonzero().max())] += batch.rewards_B[row]
    return rewards


def token_advantages(batch: RandomBatch) -> dict[str, Tensor]:
    rewards, mask = token_rewards(batch, kl_coefficient=0.1), batch.mask_BT.double()
    gae, returns = core_algos.compute_gae_advantage_return(
        rewards, batch.values_BT, mask, torch.tensor(0.97), torch.tensor(0.9)
    )
    reinforce, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rewards, mask, config=SimpleNamespace(gamma=0.97)
    )
    return {"gae": gae, "returns": returns, "reinforce_plus_plus": reinforce}


def group_advantages(batch: RandomBatch) -> dict[str, Tensor]:
    """Return advantages at every token; those of a trajectory are equal, and its first token is sampled."""
    rewards, mask = token_rewards(batch, kl_coefficient=0.0), batch.mask_BT.double()
    index = np.repeat(np.arange(len(batch.sizes)), batch.sizes)
    grpo = core_algos.compute_grpo_outcome_advantage
    baseline = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
    return {
        "grpo": grpo(rewards, mask, index)[0],
        "dr_grpo": grpo(rewards, mask, index, norm_adv_by_std_in_grpo=False)[0],
        "rloo": core_algos.compute_rloo_outcome_advantage(rewards, mask, index)[0],
        "reinforce_plus_plus_baseline": baseline(rewards, mask, index)[0],
    }


def rollout_weights(batch: RandomBatch) -> dict[str, Tensor]:
    weights = {}
    for level in ("token", "sequence"):
        for method, bounds in {"truncate": 1.2, "mask": "0.8_1.2"}.items():
            weights[f"{level}_{method}"], _ = rollout_corr_helper.compute_rollout_correction_weights(
                batch.old_BT - batch.rollout_BT, batch.mask_BT.double(), level, bounds
            )
    return weights


def far_policy_loss(batch: RandomBatch) -> tuple[Tensor, Tensor]:
    """Return loss and gradient without a dual clip, with two tokens far from the policy before the update."""
    logprobs = batch.far_logprobs_BT.requires_grad_(True)
    settings = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1e30}
    config = OmegaConf.create({**settings, "global_batch_info": {}})
    advantages = batch.advantages_B[:, None].expand_as(logprobs)
    loss, _ = core_algos.compute_policy_loss_vanilla(
        batch.old_BT, logprobs, advantages, batch.mask_BT.double(), "token-mean", config
    )
    return loss, torch.autograd.grad(loss, logprobs)[0]


if __name__ == "__main__":
    main()
