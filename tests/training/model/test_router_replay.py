"""Routers in training choose the experts of the rollout, with current weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import DTypeLike
from torch import Tensor, distributed
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection, RolloutSection, RunConfig
from agentrl.errors import ConfigError
from agentrl.training.actor import Actor
from agentrl.training.model.decoder import decoder_layers, load_model, recompute_activations
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import empty_tokens, pack_examples, pack_tokens
from agentrl.training.packing.sequence_parallel import SequenceGroup
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Group, Trajectory, TrajectoryRef
from tests.training.architecture_cases import tiny_config
from tests.training.training_cases import SIZES, alone, make_policy, step_groups, with_experts

KINDS = ("mixtral", "qwen3_moe", "qwen3_moe with a dense layer", "olmoe", "deepseek_v3", "gpt_oss", "granitemoe")


def routed_groups(dtype: DTypeLike = np.uint8) -> list[Group]:
    return [
        Group(
            prompt_id=group.prompt_id,
            trajectories=[
                TrajectoryRef(summary=trajectory.summary, ref=with_experts(trajectory.ref, dtype))
                for trajectory in group.trajectories
            ],
        )
        for group in step_groups()
    ]


def trajectories(dtype: DTypeLike = np.uint8) -> list[Trajectory]:
    return [trajectory.ref for group in routed_groups(dtype) for trajectory in group.trajectories]


def replaying_model(folder: str) -> Any:
    model = load_model(ModelSection(path=folder))
    replay_routing(model, decoder_layers(model), "here")
    return model


def plain_logprobs(folder: str, trajectory: Trajectory) -> tuple[Tensor, Any]:
    """Return log-probabilities of transformers' own layers over one sequence, with the output of the routers replaced.

    The weights of the experts are computed from the router's logits for each architecture.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    experts = (
        torch.frombuffer(bytearray(trajectory.experts), dtype=torch.uint8)
        .long()
        .view(-1, SIZES["num_hidden_layers"], 2)
    )
    kind = model.config.model_type

    def replaced(layer: int) -> Any:
        def hook(router: Any, _: Any, output: Any) -> Any:
            chosen = experts[:, layer]
            logits = output[2] if kind == "granitemoe" else output[0]
            if kind in ("gpt_oss", "granitemoe"):
                weights = logits.gather(1, chosen).softmax(-1)
            else:
                scores = logits.sigmoid() if kind == "deepseek_v3" else logits.softmax(-1)
                weights = scores.gather(1, chosen)
                if getattr(router, "norm_topk_prob", True):
                    weights = weights / weights.sum(-1, keepdim=True)
                weights = weights * getattr(router, "routed_scaling_factor", 1.0)
            return (chosen, weights, logits) if kind == "granitemoe" else (logits, weights, chosen)

        return hook

    for number, layer in enumerate(model.model.layers):
        for part in layer.modules():
            if type(part).__name__.lower().endswith("router"):
                part.register_forward_hook(replaced(number))
    ids = torch.tensor(trajectory.token_ids)
    logprobs = model(input_ids=ids[None, :-1], use_cache=False).logits[0].log_softmax(-1)
    chosen = logprobs.gather(1, ids[1:, None]).squeeze(1)
    return chosen[torch.tensor(trajectory.response_mask[1:], dtype=torch.bool)], model


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_logprobs_and_gradients_match_routers_with_replaced_output(kind: str, tmp_path: Path):
    folder = str(make_policy(tmp_path, tiny_config(kind)))
    model = replaying_model(folder)
    recompute_activations(model)
    chosen = trajectories()[:5]
    [row] = pack_examples(chosen, Packing(max_tokens=10_000))
    assert row.layout.prefixes
    free = score_tokens(load_model(ModelSection(path=folder)), row, temperature=1.0).logprobs_N
    logprobs_N = score_tokens(model, row, temperature=1.0).logprobs_N
    logprobs_N.sum().backward()
    order = sorted(range(5), key=lambda number: -len(chosen[number].token_ids))
    expected = [plain_logprobs(folder, chosen[number]) for number in order]
    joined = torch.cat([logprobs for logprobs, _ in expected])
    assert (logprobs_N - joined).abs().max() < 1e-4
    assert (free - joined).abs().max() > 0.01
    gradients: dict[str, Tensor] = {}
    for logprobs, plain in expected:
        logprobs.sum().backward()
        for name, weight in plain.named_parameters():
            if weight.grad is not None:
                gradients[name] = gradients.get(name, torch.zeros(())) + weight.grad
    assert any("gate" in name or "router" in name for name in gradients)
    for name, weight in model.named_parameters():
        if name in gradients:
            assert weight.grad is not None
            assert (weight.grad - gradients[name]).norm() <= 1e-4 * gradients[name].norm() + 1e-6, name


def test_two_bytes_per_expert_are_read(tmp_path: Path):
    model = replaying_model(str(make_policy(tmp_path, tiny_config("mixtral"))))
    narrow, wide = (
        score_tokens(model, pack_tokens(trajectories(dtype)[:3]), temperature=1.0).logprobs_N
        for dtype in (np.uint8, np.uint16)
    )
    assert torch.equal(narrow, wide)


def test_a_trajectory_without_experts_is_refused_and_an_empty_row_is_not(tmp_path: Path):
    model = replaying_model(str(make_policy(tmp_path, tiny_config("mixtral"))))
    mixed = [trajectories()[0], replace(trajectories()[1], experts=b"")]
    with pytest.raises(ValueError, match="the engine did not return the experts of a trajectory"):
        score_tokens(model, pack_tokens(mixed), temperature=1.0)
    score_tokens(model, empty_tokens(), temperature=1.0)
    other = replace(trajectories()[0], experts=trajectories()[0].experts * 3)
    with pytest.raises(ValueError, match="12 bytes of experts per token, and the model has 2 layers with 2 experts"):
        score_tokens(model, pack_tokens([other]), temperature=1.0)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_dense_model_is_refused(kind: str, tmp_path: Path):
    with pytest.raises(
        ConfigError, match=rf"replay_routing` is set, but here \(`{kind}`\) has no experts, or none whose"
    ):
        replaying_model(str(make_policy(tmp_path, tiny_config(kind))))


def test_the_experts_of_a_row_are_divided_like_its_tokens():
    whole = pack_tokens(trajectories()[:2])
    assert whole.experts_TB is not None
    parts = []
    for rank in range(2):
        group = SequenceGroup(rank=rank, size=2, process_group=distributed.group.WORLD)  # pyright: ignore[reportArgumentType]
        part = whole.to(torch.device("cpu"), group)
        assert part.experts_TB is not None
        assert len(part.experts_TB) == len(part.token_ids_T)
        parts.append(part.experts_TB)
    assert torch.equal(torch.cat(parts)[: len(whole.token_ids_T)], whole.experts_TB)


def test_an_update_replays_the_recorded_experts(tmp_path: Path):
    """Recorded experts leave no difference from the rollout's log-probabilities."""
    folder = str(make_policy(tmp_path, tiny_config("qwen3_moe")))
    groups, model = routed_groups(), replaying_model(folder)
    for group in groups:
        for trajectory in group.trajectories:
            logprobs = score_tokens(model, pack_tokens([trajectory.ref]), temperature=1.0).logprobs_N.tolist()
            for place, sampled in enumerate(trajectory.ref.response_mask):
                trajectory.ref.rollout_logprobs[place] = logprobs.pop(0) if sampled else float("nan")
    differences = []
    for replays in (True, False):
        rollout = RolloutSection(max_response_tokens=64, replay_routing=replays)
        config = RunConfig(model=ModelSection(path=folder), rollout=rollout)
        actor, parallel = Actor(config, "actor"), Parallel(alone())
        try:
            actor.setup(parallel)
            [(shard, refs)] = plan_update(groups, step=1, num_ranks=1, num_mini_batches=1)
            metrics = actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))
            actor.close()
        finally:
            parallel.close()
        differences.append(metrics["actor/rollout_logprob_diff_mean"])
    assert differences[0] < 1e-5
    assert differences[1] > 0.01
