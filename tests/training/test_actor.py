import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.config.schema.algorithm import RolloutCorrectionSection
from agentrl.config.schema.run import ActorSection, AlgorithmSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.reference import Reference
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Group, TrajectoryRef
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.plain_grpo import PlainGrpo
from tests.training.training_cases import alone, make_group

ACTOR = ActorSection(
    learning_rate=0.01,
    warmup_steps=0,
    weight_decay=0.1,
    max_grad_norm=0.5,
    max_tokens_per_micro_batch=64,
)
Start = Callable[..., Actor]


@pytest.fixture
def context() -> Iterator[Parallel]:
    """The only rank, shared by all components."""
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


@pytest.fixture
def start(policy: ModelSection, context: Parallel) -> Iterator[Start]:
    running: list[Actor] = []

    def start_actor(**settings: Any) -> Actor:
        actor = Actor(config_of(**{"model": policy, **settings}), "actor")
        actor.setup(context)
        running.append(actor)
        return actor

    yield start_actor
    for actor in running:
        actor.close()


def config_of(
    *,
    model: ModelSection,
    actor: ActorSection = ACTOR,
    algorithm: AlgorithmSection | None = None,
    temperature: float = 1.0,
) -> RunConfig:
    return RunConfig(
        model=model,
        actor=actor,
        algorithm=algorithm or AlgorithmSection(),
        rollout=RolloutSection(temperature=temperature, max_response_tokens=64),
    )


@pytest.fixture(scope="session")
def start_weights(policy: ModelSection) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(policy.path, dtype=torch.float32)
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def groups_of(number: int, seed: int = 0) -> list[Group]:
    draws = random.Random(seed)
    return [make_group(draws, f"p{index}", 6) for index in range(number)]


def update(
    actor: Actor, groups: list[Group], *, step: int = 1, num_mini_batches: int = 1, reference: Reference | None = None
) -> dict[str, float]:
    [(shard, refs)] = plan_update(groups, step=step, num_ranks=1, num_mini_batches=num_mini_batches)
    trajectories = [trajectory.ref for trajectory in refs]
    ref_logprobs = [None] * len(trajectories) if reference is None else reference.logprobs(trajectories)
    return actor.update(shard, trajectories, [TokenInputs(ref_logprobs=logprobs) for logprobs in ref_logprobs])


def weights_of(actor: Actor) -> dict[str, Tensor]:
    source = actor.publish_weights()
    assert source is not None
    return {name: tensor.clone() for name, tensor in read_tensors(source)}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_same_way(ours: dict[str, Tensor], theirs: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    """Compare relative to the distance from `start`, because Adam turns noise in tiny gradients into whole steps."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).norm() < 5e-3 * (tensor - start[name]).norm(), name


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_three_updates_equal_a_plain_loop_that_recomputes_old_logprobs(
    policy: ModelSection, start: Start, start_weights: dict[str, Tensor], temperature: float
):
    actor, plain = start(temperature=temperature), PlainGrpo(policy.path, temperature=temperature)
    for step in (1, 2, 3):
        groups = groups_of(3, seed=step)
        metrics, expected = update(actor, groups, step=step), plain.update([groups])
        assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
        assert metrics["actor/grad_norm"] == pytest.approx(expected.grad_norm, rel=1e-4)
        assert metrics["actor/ratio_max"] == metrics["actor/ratio_min"] == 1.0
        assert metrics["actor/clip_fraction"] == 0.0
        assert_same_way(weights_of(actor), expected.weights, start_weights)


def test_mini_batches_use_old_logprobs_from_before_the_first(
    policy: ModelSection, start: Start, start_weights: dict[str, Tensor]
):
    actor, plain, groups = start(), PlainGrpo(policy.path), groups_of(4)
    metrics, expected = update(actor, groups, num_mini_batches=2), plain.update([groups[:2], groups[2:]])
    assert_same_way(weights_of(actor), expected.weights, start_weights)
    assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
    assert metrics["actor/ratio_max"] > 1.0 > metrics["actor/ratio_min"] > 0.0
    parts = [metrics[f"actor/{part}_s"] for part in ("packing", "old_logprobs", "gradients")]
    assert min(parts) > 0.0
    assert sum(parts) <= metrics["actor/update_s"]


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_a_second_epoch_uses_old_logprobs_from_before_the_first(
    policy: ModelSection, start: Start, start_weights: dict[str, Tensor], num_mini_batches: int
):
    actor, plain = start(actor=ACTOR.model_copy(update={"epochs_per_step": 2})), PlainGrpo(policy.path)
    groups = groups_of(4)
    parts = [groups] if num_mini_batches == 1 else [groups[:2], groups[2:]]
    metrics, expected = update(actor, groups, num_mini_batches=num_mini_batches), plain.update(parts * 2)
    assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(expected.grad_norm, rel=1e-4)
    assert metrics["actor/ratio_max"] > 1.0 > metrics["actor/ratio_min"]
    assert metrics["actor/response_tokens"] == sum(m.ref.num_response_tokens for g in groups for m in g.trajectories)
    assert_same_way(weights_of(actor), expected.weights, start_weights)


def test_clip_fractions_of_the_bounds_add_up(start: Start):
    tight = AlgorithmSection(clip_ratio_low=0.01, clip_ratio_high=0.02, clip_ratio_dual=1.05)
    metrics = update(start(algorithm=tight), groups_of(4), num_mini_batches=2)
    parts = [metrics[f"actor/clip_fraction_{bound}"] for bound in ("low", "high", "dual")]
    assert min(parts) > 0.0
    assert sum(parts) == pytest.approx(metrics["actor/clip_fraction"])
    assert "actor/clip_fraction_dual" not in update(start(), groups_of(1))


def test_the_kl_term_pulls_towards_the_starting_policy(
    policy: ModelSection, start: Start, context: Parallel, start_weights: dict[str, Tensor]
):
    plain = PlainGrpo(policy.path, kl_coefficient=0.3)
    actor = start(algorithm=AlgorithmSection(kl_coefficient=0.3))
    reference = Reference(config_of(model=policy), "ref")
    reference.setup(context)
    first, second = groups_of(2, seed=1), groups_of(2, seed=2)
    assert update(actor, first, reference=reference)["actor/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    plain.update([first])
    metrics, expected = update(actor, second, step=2, reference=reference), plain.update([second])
    assert metrics["actor/kl_reference"] > 1e-3
    assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
    assert_same_way(weights_of(actor), expected.weights, start_weights)


def test_an_entropy_bonus_raises_the_entropy(start: Start):
    """All rewards are equal, so advantages are 0 and only the bonus has an effect."""
    groups = [
        dataclasses.replace(
            group,
            trajectories=[
                dataclasses.replace(trajectory, summary=dataclasses.replace(trajectory.summary, reward=1.0))
                for trajectory in group.trajectories
            ],
        )
        for group in groups_of(2)
    ]
    actor = start(algorithm=AlgorithmSection(entropy_coefficient=0.1))
    entropies = [update(actor, groups, step=step)["actor/entropy"] for step in (1, 2, 3)]
    assert entropies[0] < entropies[1] < entropies[2]
    metrics = update(actor, groups)
    assert metrics["actor/loss"] == pytest.approx(-0.1 * metrics["actor/entropy"], rel=1e-5)


@pytest.mark.parametrize("aggregation", ["trajectory_mean", "fixed_length"])
@pytest.mark.parametrize("max_tokens", [1, 10_000])
def test_aggregation_does_not_depend_on_the_packing(
    start: Start,
    start_weights: dict[str, Tensor],
    aggregation: Literal["trajectory_mean", "fixed_length"],
    max_tokens: int,
):
    results = []
    for size in (64, max_tokens):
        algorithm = AlgorithmSection(aggregation=aggregation)
        actor = start(
            actor=ACTOR.model_copy(update={"max_tokens_per_micro_batch": size, "max_grad_norm": 1e9}),
            algorithm=algorithm,
        )
        metrics = update(actor, groups_of(3))
        results.append((metrics["actor/loss"], metrics["actor/grad_norm"], weights_of(actor)))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    assert_same_way(results[0][2], results[1][2], start_weights)


def test_a_custom_loss_is_found_by_its_path(start: Start):
    """GSPO by its path equals GSPO by its name, and PPO differs."""
    losses = ("agentrl.algorithms.policy_loss.gspo_loss", "gspo", "ppo")
    norms = []
    for name in losses:
        actor = start(algorithm=AlgorithmSection(policy_loss=name))
        norms.append(update(actor, groups_of(4), num_mini_batches=2)["actor/ratio_max"])
    assert norms[0] == norms[1] != norms[2]


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_truncated_importance_sampling_equals_a_plain_loop(
    policy: ModelSection, start: Start, start_weights: dict[str, Tensor], num_mini_batches: int
):
    correction = RolloutCorrectionSection(method="truncate", max_ratio=1.5)
    actor, plain = start(algorithm=AlgorithmSection(rollout_correction=correction)), PlainGrpo(policy.path, cap=1.5)
    groups = groups_of(4)
    metrics = update(actor, groups, num_mini_batches=num_mini_batches)
    size = len(groups) // num_mini_batches
    expected = plain.update([groups[i : i + size] for i in range(0, len(groups), size)])
    assert 0 < metrics["actor/rollout_weight_cut_fraction"] < 1
    assert 0 < metrics["actor/rollout_weight_mean"] < 1.5
    assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
    assert_same_way(weights_of(actor), expected.weights, start_weights)


def test_masking_drops_tokens_outside_the_bounds(start: Start):
    nothing_left = RolloutCorrectionSection(method="mask", min_ratio=1.0, max_ratio=1.0)
    actor = start(algorithm=AlgorithmSection(rollout_correction=nothing_left))
    metrics = update(actor, groups_of(2))
    assert metrics["actor/rollout_weight_cut_fraction"] == 1.0
    assert (metrics["actor/loss"], metrics["actor/grad_norm"]) == (0.0, 0.0)


@pytest.mark.parametrize("max_tokens", [1, 100, 10_000])
def test_packing_and_accumulation_do_not_change_the_update(
    start: Start, start_weights: dict[str, Tensor], max_tokens: int
):
    groups, results = groups_of(3), []
    for size in (64, max_tokens):
        actor = start(actor=ACTOR.model_copy(update={"max_tokens_per_micro_batch": size}))
        metrics = update(actor, groups)
        results.append((metrics["actor/grad_norm"], metrics["actor/entropy"], weights_of(actor)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    assert_same_way(results[0][2], results[1][2], start_weights)


def test_a_learning_rate_of_zero_changes_no_weight(start: Start):
    actor = start(actor=ACTOR.model_copy(update={"learning_rate": 0.0}))
    before = weights_of(actor)
    update(actor, groups_of(2))
    assert_same(before, weights_of(actor))


def test_the_learning_rate_warms_up_with_the_steps(start: Start):
    actor = start(actor=ACTOR.model_copy(update={"warmup_steps": 4}))
    rates = [update(actor, groups_of(1), step=step)["actor/learning_rate"] for step in (1, 2, 9)]
    assert rates == [0.0025, 0.005, 0.01]


def test_the_learning_rate_decays_with_the_step_also_in_a_new_actor(start: Start):
    config = ACTOR.model_copy(update={"warmup_steps": 1, "decay_steps": 3, "final_learning_rate_fraction": 0.0})
    rates = [update(start(actor=config), groups_of(1), step=step)["actor/learning_rate"] for step in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.01, 0.005, 0.0, 0.0])


def test_rewarded_trajectories_become_likelier_and_others_less_likely(policy: ModelSection, start: Start):
    actor, groups = start(), groups_of(1)
    before = PlainGrpo(policy.path)
    update(actor, groups)
    after = PlainGrpo(policy.path)
    after.model.load_state_dict(weights_of(actor), strict=False)
    for trajectory in groups[0].trajectories:
        old, new = (grpo.logprobs(grpo.model, trajectory.ref).sum().item() for grpo in (before, after))
        assert (new > old) == (trajectory.summary.reward == 1.0)


def test_metrics_measure_the_distance_to_the_rollout_policy(policy: ModelSection, start: Start):
    actor, plain, groups = start(), PlainGrpo(policy.path), groups_of(2)
    with torch.no_grad():
        scored = {
            trajectory.ref.trajectory_id: plain.logprobs(plain.model, trajectory.ref)
            for g in groups
            for trajectory in g.trajectories
        }

    def shifted(ref: TrajectoryRef) -> TrajectoryRef:
        return dataclasses.replace(ref, ref=with_rollout_logprobs(ref.ref, scored[ref.ref.trajectory_id] - 0.1))

    faithful = [dataclasses.replace(group, trajectories=[*map(shifted, group.trajectories)]) for group in groups]
    metrics = update(actor, faithful)
    assert metrics["actor/rollout_logprob_diff_mean"] == pytest.approx(0.1, abs=1e-4)
    assert metrics["actor/rollout_ratio_max"] == pytest.approx(1.1052, abs=1e-3)
    assert metrics["actor/rollout_kl"] == pytest.approx(1.1052 - 1 - 0.1, abs=1e-3)
    assert metrics["actor/response_tokens"] == sum(len(logprobs) for logprobs in scored.values())
    assert metrics["actor/tokens"] == sum(
        trajectory.summary.num_tokens for g in groups for trajectory in g.trajectories
    )


def with_rollout_logprobs(trajectory, logprobs_N: Tensor):
    values = iter(logprobs_N.tolist())
    filled = [next(values) if sampled else float("nan") for sampled in trajectory.response_mask]
    return dataclasses.replace(trajectory, rollout_logprobs=filled)


def test_a_nan_loss_stops_the_run(start: Start, policy: ModelSection, tmp_path: Path):
    broken = AutoModelForCausalLM.from_pretrained(policy.path)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    broken.save_pretrained(tmp_path)
    actor = start(model=ModelSection(path=str(tmp_path)))
    with pytest.raises(FloatingPointError, match="update 5: loss of the actor is nan"):
        update(actor, groups_of(1), step=5)


def test_logprobs_do_not_depend_on_the_packing(start: Start):
    trajectories = [trajectory.ref for trajectory in groups_of(1)[0].trajectories]
    packed = start().logprobs(trajectories)
    single = ACTOR.model_copy(update={"max_tokens_per_micro_batch": 1})
    alone = [start(actor=single).logprobs([trajectory])[0] for trajectory in trajectories]
    assert [len(row) for row in packed] == [sum(trajectory.response_mask) for trajectory in trajectories]
    for together, apart in zip(packed, alone, strict=True):
        assert together == pytest.approx(apart, abs=1e-5)


def test_a_resumed_actor_continues_exactly(start: Start, tmp_path: Path):
    actor = start()
    update(actor, groups_of(2, seed=1))
    actor.save(str(tmp_path / "checkpoint"))
    randoms = torch.rand(3)
    metrics = update(actor, groups_of(2, seed=2), step=2)
    expected = weights_of(actor)
    actor.close()  # completes the checkpoint

    resumed = start()
    resumed.load(str(tmp_path / "checkpoint"))
    assert torch.equal(torch.rand(3), randoms)
    repeated = update(resumed, groups_of(2, seed=2), step=2)
    assert_same(weights_of(resumed), expected)
    assert repeated["actor/loss"] == metrics["actor/loss"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_loads_as_an_ordinary_model_with_its_tokenizer(
    start: Start, policy: ModelSection, tmp_path: Path, dtype: str
):
    actor = start(model=policy.model_copy(update={"dtype": dtype}))
    update(actor, groups_of(1))
    actor.export(str(tmp_path))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert exported.dtype == getattr(torch, dtype)
    assert type(exported).__name__ == "Qwen3ForCausalLM"
    assert exported.config.architectures == ["Qwen3ForCausalLM"]
    assert_same(weights_of(actor), dict(exported.named_parameters()))
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    tokenizer, original = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path, policy.path))
    assert tokenizer.get_vocab() == original.get_vocab()
    assert tokenizer.chat_template == original.chat_template


def test_bfloat16_is_close_to_float32_with_float32_master_weights(start: Start, policy: ModelSection):
    groups = groups_of(2)
    exact = update(start(), groups)
    actor = start(model=policy.model_copy(update={"dtype": "bfloat16"}))
    rounded = update(actor, groups)
    assert rounded["actor/entropy"] == pytest.approx(exact["actor/entropy"], rel=0.02)
    assert rounded["actor/grad_norm"] == pytest.approx(exact["actor/grad_norm"], rel=0.1)
    assert weights_of(actor)["model.norm.weight"].dtype == torch.bfloat16
