"""Writes `verl_values.json`: what verl computes on a random batch, for `test_advantages_are_verls`.

verl and agentrl cannot share an environment, so this runs in one of its own:

    python -m venv /tmp/verl && /tmp/verl/bin/pip install torch numpy omegaconf && \
        /tmp/verl/bin/pip install --no-deps verl==0.9.1 tensordict pyvers codetiming
    /tmp/verl/bin/python tests/algorithms/record_verl.py
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from verl.trainer.ppo import core_algos  # pyright: ignore[reportMissingImports]

BATCH, LENGTH = 6, 9


def main() -> None:
    generator = torch.Generator().manual_seed(7)
    mask = (torch.rand(BATCH, LENGTH, generator=generator) < 0.75).double()
    mask[:, 0] = 1.0
    mask[2, 5:] = 0.0
    old, ref, values, new_values = (torch.randn(BATCH, LENGTH, generator=generator).double() for _ in range(4))
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25]).double()
    divergence = {name: core_algos.kl_penalty(old, ref, name) for name in ("kl", "mse", "low_var_kl")}
    token_rewards = -0.1 * divergence["kl"] * mask
    for row in range(BATCH):
        token_rewards[row, int(mask[row].nonzero().max())] += rewards[row]
    gae, returns = core_algos.compute_gae_advantage_return(
        token_rewards, values, mask, torch.tensor(0.97), torch.tensor(0.9)
    )
    reinforce, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_rewards, mask, config=SimpleNamespace(gamma=0.97)
    )
    loss, clipped = core_algos.compute_value_loss(new_values, returns, values, mask, 0.2)
    controller = core_algos.AdaptiveKLController(0.1, 6.0, 1000)
    coefficients = []
    for divergence_seen in (9.0, 6.3, 2.0):
        controller.update(divergence_seen, 64)
        coefficients.append(float(controller.value))
    recorded = {
        "mask": mask,
        "old": old,
        "ref": ref,
        "values": values,
        "new_values": new_values,
        "rewards": rewards,
        "k1": divergence["kl"],
        "k2": divergence["mse"],
        "k3": divergence["low_var_kl"],
        "gae": gae * mask,
        "returns": returns * mask,
        "reinforce_plus_plus": reinforce,
        "value_loss": loss,
        "value_clipped": clipped,
    }
    content = {name: tensor.tolist() for name, tensor in recorded.items()} | {"kl_coefficients": coefficients}
    Path(__file__).with_name("verl_values.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
