"""Training, export and weight sync of mixtures of experts. Reference: a plain loop over transformers' own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.models.file_names import FileNames
from agentrl.run.preflight.memory import read_size
from agentrl.training.actor import Actor
from agentrl.training.model.decoder import load_model, shape_of
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import plan_update
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.architecture_cases import MIXTURES, tiny_config
from tests.training.plain_grpo import PlainGrpo
from tests.training.training_cases import alone, make_policy, step_groups

ACTOR = ActorSection(
    learning_rate=0.01,
    warmup_steps=0,
    weight_decay=0.1,
    max_grad_norm=0.5,
    max_tokens_per_micro_batch=256,
)


@pytest.fixture
def context() -> Iterator[Parallel]:
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


@pytest.mark.parametrize("kind", MIXTURES)
def test_an_update_of_a_mixture_equals_a_plain_loop_and_its_export_has_the_same_weights(
    kind: str, context: Parallel, tmp_path: Path
):
    folder, exported = str(make_policy(tmp_path / "policy", tiny_config(kind))), tmp_path / "exported"
    model = ModelSection(path=folder)
    plain, groups = PlainGrpo(folder), step_groups()
    start = {name: weight.detach().clone() for name, weight in plain.model.named_parameters()}
    actor = Actor(RunConfig(model=model, actor=ACTOR, rollout=RolloutSection(max_response_tokens=64)), "actor")
    actor.setup(context)
    try:
        [(shard, refs)] = plan_update(groups, step=1, num_ranks=1, num_mini_batches=1)
        metrics = actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))
        expected = plain.update([groups])
        source = actor.publish_weights()
        assert source is not None
        ours = {name: tensor.clone() for name, tensor in read_tensors(source)}
        actor.export(str(exported))
    finally:
        actor.close()
    assert metrics["actor/loss"] == pytest.approx(expected.loss, abs=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(expected.grad_norm, rel=1e-4)
    for name, theirs in expected.weights.items():
        assert (ours[name] - theirs).norm() <= 5e-3 * (theirs - start[name]).norm(), name
    loaded = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, ours[name]), name
    # vLLM gets the tensors that it would read from the exported folder.
    written = load_file(exported / "model.safetensors")
    converted = dict(FileNames.of_folder(folder).of(ours.items()))
    assert converted.keys() == written.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in written.items())


def test_names_of_a_model_without_experts_are_unchanged(tmp_path: Path):
    weights = {"model.norm.weight": torch.ones(2)}
    assert dict(FileNames.of_folder(str(make_policy(tmp_path))).of(weights.items())) == weights


@pytest.mark.parametrize(("kind", "width"), [("mixtral", 64), ("qwen3_moe", 16)])
def test_activations_are_estimated_for_the_experts_that_a_token_uses(kind: str, width: int, tmp_path: Path):
    folder = make_policy(tmp_path, tiny_config(kind))
    size = read_size(str(folder))
    assert size is not None
    assert size.inner_width == 2 * width
    assert size.num_weights == sum(weight.numel() for weight in load_model(ModelSection(path=str(folder))).parameters())


@pytest.mark.parametrize("kind", MIXTURES)
def test_operations_are_counted_for_the_experts_that_a_token_uses(kind: str, tmp_path: Path):
    model = load_model(ModelSection(path=str(make_policy(tmp_path, tiny_config(kind)))))
    of_experts = {
        name: weight.numel() for name, weight in model.named_parameters() if re.search(r"layers.*\.experts\.", name)
    }
    assert of_experts
    all_weights = sum(weight.numel() for name, weight in model.named_parameters() if ".layers." in name)
    # Two of four experts.
    assert shape_of(model).layer_weights == all_weights - sum(of_experts.values()) // 2
