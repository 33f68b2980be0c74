import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from agentrl.config.schema.algorithm import AlgorithmSection, CriticSection
from agentrl.config.schema.run import ActorSection, ModelSection, RunConfig
from agentrl.training.critic import Critic
from agentrl.training.model.decoder import load_model
from agentrl.training.model.scalar_model import value_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import members_of, pack_tokens, plan_rows
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Group, Trajectory
from tests.training.training_cases import alone, make_group, step_groups

CRITIC = CriticSection(learning_rate=0.01, value_clip=0.3)
ACTOR = ActorSection(
    learning_rate=1e-6, warmup_steps=0, weight_decay=0.1, max_grad_norm=0.5, max_tokens_per_micro_batch=64
)
GAE = AlgorithmSection(advantage="gae", discount=0.99, gae_lambda=0.9)


@pytest.fixture
def context() -> Iterator[Parallel]:
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


def start(
    policy: ModelSection,
    context: Parallel,
    *,
    critic: CriticSection = CRITIC,
    actor: ActorSection = ACTOR,
    **settings: Any,
) -> Critic:
    config = RunConfig(model=policy, critic=critic, actor=actor, algorithm=GAE.model_copy(update=settings))
    started = Critic(config, "critic")
    started.setup(context)
    return started


def groups_of(number: int, seed: int = 0) -> list[Group]:
    draws = random.Random(seed)
    return [make_group(draws, f"p{index}", 4) for index in range(number)]


def update(critic: Critic, groups: list[Group], *, step: int = 1, num_mini_batches: int = 1) -> dict[str, float]:
    [(shard, refs)] = plan_update(groups, step=step, num_ranks=1, num_mini_batches=num_mini_batches)
    trajectories = [trajectory.ref for trajectory in refs]
    inputs = [TokenInputs(values=values) for values in critic.values(trajectories)]
    return critic.update(shard, trajectories, inputs)


class PlainCritic:
    """A plain loop over unpacked sequences: torch and transformers only."""

    def __init__(self, folder: str) -> None:
        self.backbone = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.head = torch.nn.Linear(32, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.parameters = [*self.backbone.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=0.01, weight_decay=0.1, foreach=False)

    def values(self, trajectory: Trajectory) -> Tensor:
        states = self.backbone(torch.tensor([trajectory.token_ids])).last_hidden_state[0]
        sampled = [place for place, mark in enumerate(trajectory.response_mask[1:]) if mark]
        return self.head(states[sampled]).squeeze(1)

    def update(self, mini_batches: list[list[Group]]) -> None:
        batches = [[trajectory.ref for group in groups for trajectory in group.trajectories] for groups in mini_batches]
        with torch.no_grad():
            old = {trajectory.trajectory_id: self.values(trajectory) for batch in batches for trajectory in batch}
        for batch in batches:
            losses = [self.losses(trajectory, old[trajectory.trajectory_id]) for trajectory in batch]
            self.optimiser.zero_grad()
            torch.cat(losses).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.optimiser.step()

    def losses(self, trajectory: Trajectory, old: Tensor) -> Tensor:
        running, following, returns = 0.0, 0.0, []
        for place in reversed(range(len(old))):
            reward = trajectory.reward or 0.0 if place == len(old) - 1 else 0.0
            running = reward + 0.99 * following - old[place].item() + 0.99 * 0.9 * running
            following = old[place].item()
            returns.append(running + following)
        wanted = torch.tensor(returns[::-1])
        new = self.values(trajectory)
        near = torch.min(torch.max(new, old - 0.3), old + 0.3)
        return 0.5 * torch.max((new - wanted) ** 2, (near - wanted) ** 2)


def test_a_new_critic_predicts_zero(policy: ModelSection, context: Parallel):
    trajectories = [trajectory.ref for trajectory in groups_of(1)[0].trajectories]
    values = start(policy, context).values(trajectories)
    assert [row.tolist() for row in values] == [[0.0] * sum(trajectory.response_mask) for trajectory in trajectories]


@pytest.mark.parametrize(("num_mini_batches", "num_epochs"), [(1, 1), (2, 1), (2, 2)])
def test_three_updates_equal_a_plain_loop(
    policy: ModelSection, context: Parallel, num_mini_batches: int, num_epochs: int
):
    critic = start(policy, context, actor=ACTOR.model_copy(update={"epochs_per_step": num_epochs}))
    plain = PlainCritic(policy.path)
    for step in (1, 2, 3):
        groups = groups_of(2, seed=step)
        update(critic, groups, step=step, num_mini_batches=num_mini_batches)
        plain.update(([groups] if num_mini_batches == 1 else [groups[:1], groups[1:]]) * num_epochs)
    trajectories = [trajectory.ref for group in groups_of(2, seed=9) for trajectory in group.trajectories]
    ours = np.concatenate(critic.values(trajectories))
    theirs = torch.cat([plain.values(trajectory) for trajectory in trajectories]).detach().numpy()
    assert np.abs(theirs).max() > 0.05
    # Adam turns noise in tiny gradients into steps.
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)


@pytest.mark.parametrize("max_tokens", [90, 10_000])
def test_gradients_with_shared_prompts_equal_a_plain_loop(policy: ModelSection, max_tokens: int):
    plain, model = PlainCritic(policy.path), value_model(load_model(policy))
    with torch.no_grad():
        for head in (plain.head, model.head):
            head.weight.copy_(torch.linspace(-1, 1, 32))
    trajectories = [trajectory.ref for group in step_groups() for trajectory in group.trajectories]
    rows = plan_rows(trajectories, Packing(max_tokens=max_tokens))
    packed = [pack_tokens(trajectories, row) for row in rows]
    assert all(tokens.layout.prefixes for tokens in packed)
    for tokens, row in zip(packed, rows, strict=True):
        wanted_N = torch.cat([targets(trajectories[member]) for member in members_of(row)])
        (model(tokens) - wanted_N).square().sum().backward()
    for sequence in trajectories:
        (plain.values(sequence) - targets(sequence)).square().sum().backward()
    ours = [*model.backbone.parameters(), *model.head.parameters()]
    for mine, expected in zip(ours, plain.parameters, strict=True):
        assert mine.grad is not None
        assert expected.grad is not None
        assert (mine.grad - expected.grad).norm() <= 1e-5 * expected.grad.norm()


def targets(trajectory: Trajectory) -> Tensor:
    """Return a different target for each scored token."""
    return 0.1 * torch.arange(sum(trajectory.response_mask[1:])) - trajectory.sample_index


def test_packing_does_not_change_the_update(policy: ModelSection, context: Parallel):
    norms = [
        update(
            start(policy, context, actor=ACTOR.model_copy(update={"max_tokens_per_micro_batch": size})), groups_of(2)
        )
        for size in (1, 10_000)
    ]
    assert norms[0]["critic/grad_norm"] == pytest.approx(norms[1]["critic/grad_norm"], rel=1e-4)
    assert norms[0]["critic/loss"] == pytest.approx(norms[1]["critic/loss"], rel=1e-5)


def test_a_critic_learns_the_returns(policy: ModelSection, context: Parallel):
    critic, groups = start(policy, context, discount=1.0, gae_lambda=1.0), groups_of(2)
    metrics = [update(critic, groups, step=step) for step in range(1, 16)]
    assert metrics[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["critic/explained_variance"] > 0.5
    assert metrics[-1]["critic/loss"] < 0.5 * metrics[0]["critic/loss"]


def test_values_are_clipped_only_with_a_clip(policy: ModelSection, context: Parallel):
    def clipped(value_clip: float) -> float:
        critic = start(
            policy, context, critic=CRITIC.model_copy(update={"value_clip": value_clip, "learning_rate": 0.05})
        )
        return update(critic, groups_of(4), num_mini_batches=4)["critic/clip_fraction"]

    assert clipped(0.0) == 0.0
    assert clipped(0.01) > 0.0


def test_the_backbone_may_come_from_another_folder(policy: ModelSection, context: Parallel, tmp_path: Any):
    other = AutoModel.from_pretrained(policy.path)
    with torch.no_grad():
        other.norm.weight.fill_(2.0)
    other.save_pretrained(tmp_path)
    critic = start(policy, context, critic=CRITIC.model_copy(update={"path": str(tmp_path)}))
    [weight] = [value for name, value in critic._model.named_parameters() if name.endswith("backbone.norm.weight")]
    assert weight.full_tensor().tolist() == [2.0] * 32  # type: ignore[attr-defined]


def test_a_resumed_critic_continues_exactly(policy: ModelSection, context: Parallel, tmp_path: Any):
    critic = start(policy, context)
    update(critic, groups_of(2, seed=1))
    critic.save(str(tmp_path / "critic"))
    critic.close()
    resumed = start(policy, context)
    resumed.load(str(tmp_path / "critic"))
    ours, theirs = (update(each, groups_of(2, seed=2), step=2) for each in (resumed, critic))
    assert ours["critic/loss"] == theirs["critic/loss"]
    assert ours["critic/grad_norm"] == theirs["critic/grad_norm"]


def test_a_reset_critic_clears_its_moments_and_restarts_the_warm_up(
    policy: ModelSection, context: Parallel, tmp_path: Any
):
    critic = start(policy, context, actor=ACTOR.model_copy(update={"warmup_steps": 4}))
    update(critic, groups_of(2), step=6)
    critic.reset_optimiser(6)
    assert not critic._optimiser.state
    assert update(critic, groups_of(2), step=7)["critic/learning_rate"] == pytest.approx(0.01 / 4)
    critic.save(str(tmp_path / "critic"))
    critic.close()
    resumed = start(policy, context, actor=ACTOR.model_copy(update={"warmup_steps": 4}))
    resumed.load(str(tmp_path / "critic"))
    assert update(resumed, groups_of(2), step=8)["critic/learning_rate"] == pytest.approx(0.01 / 2)


def test_missing_values_are_refused(policy: ModelSection, context: Parallel):
    [(shard, refs)] = plan_update(groups_of(1), step=1, num_ranks=1, num_mini_batches=1)
    trajectories, nothing = [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs)
    with pytest.raises(ValueError, match="needs as many values, and has none"):
        start(policy, context).update(shard, trajectories, nothing)
