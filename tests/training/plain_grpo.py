"""Reference for the actor: GRPO as a plain loop over unpacked sequences, with torch and transformers only."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.types import Group, Trajectory


@dataclass
class PlainUpdate:
    weights: dict[str, Tensor]
    grad_norm: float
    loss: float


class PlainGrpo:
    """GRPO on the model of a folder: AdamW (learning rate 0.01, decay 0.1), clipping 0.2 / 0.28, gradient norm 0.5."""

    def __init__(self, folder: str, *, temperature: float = 1.0, kl_coefficient: float = 0.0, cap: float = 0.0):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1, foreach=False
        )
        self.temperature = temperature
        self.kl_coefficient = kl_coefficient
        self.cap = cap
        """Bound of truncated importance sampling; 0: no importance weights."""

    def logprobs(self, model: torch.nn.Module, trajectory: Trajectory) -> Tensor:
        ids = torch.tensor(trajectory.token_ids)
        logits = model(ids.unsqueeze(0)).logits[0, :-1] / self.temperature
        every = logits.log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
        return every[torch.tensor(trajectory.response_mask[1:], dtype=torch.bool)]

    def update(self, mini_batches: list[list[Group]]) -> PlainUpdate:
        credited = [[self._with_advantages(group) for group in groups] for groups in mini_batches]
        batches = [[pair for pairs in groups for pair in pairs] for groups in credited]
        with torch.no_grad():
            old = {t.trajectory_id: self.logprobs(self.model, t) for batch in batches for t, _ in batch}
            ref = {t.trajectory_id: self.logprobs(self.reference, t) for batch in batches for t, _ in batch}
        losses, norms, num_all = 0.0, [], 0
        for batch in batches:
            total, num_tokens = torch.zeros(()), 0
            for trajectory, advantage in batch:
                logprobs = self.logprobs(self.model, trajectory)
                ratio = torch.exp(logprobs - old[trajectory.trajectory_id])
                surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
                total -= (self._weights(trajectory, old[trajectory.trajectory_id]) * surrogate).sum()
                gap = ref[trajectory.trajectory_id] - logprobs
                total += self.kl_coefficient * (gap.exp() - 1 - gap).sum()
                num_tokens += len(logprobs)
            self.optimiser.zero_grad()
            (total / num_tokens).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item())
            self.optimiser.step()
            losses, num_all = losses + total.item(), num_all + num_tokens
        weights = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        return PlainUpdate(weights=weights, grad_norm=sum(norms) / len(norms), loss=losses / num_all)

    def _weights(self, trajectory: Trajectory, old: Tensor) -> Tensor:
        rollout = torch.tensor([value for value in trajectory.rollout_logprobs if value == value])
        return (old - rollout).exp().clamp(max=self.cap) if self.cap else torch.ones_like(old)

    def _with_advantages(self, group: Group) -> list[tuple[Trajectory, float]]:
        rewards = torch.tensor(group.rewards)
        advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()
        return [
            (trajectory.ref, advantage) for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]
