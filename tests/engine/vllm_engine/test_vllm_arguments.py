"""vLLM's arguments from a run's config, without vLLM."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.vllm.arguments import engine_arguments, process_environment, read_model_facts

MODEL = ModelSection(path=str(Path(__file__).parents[3] / "examples" / "arithmetic" / "policy"))


@pytest.mark.parametrize(("needed", "served"), [(60_256, 60_256), (200_000, 131_072)])
def test_a_trajectory_is_not_cut_at_the_positions_named_before_yarn(needed: int, served: int, tmp_path: Path) -> None:
    settings = json.loads(Path(MODEL.path, "config.json").read_text())
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    scaled = settings | {"max_position_embeddings": 40_960, "rope_scaling": yarn}
    (tmp_path / "config.json").write_text(json.dumps(scaled))
    rollout = RolloutSection(engine="vllm")
    facts = read_model_facts(ModelSection(path=str(tmp_path)), rollout, max_tokens=needed)
    assert facts.max_tokens == served
    with process_environment(rollout, {}, on_cpu=True, num_threads=1):
        assert os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1", "vLLM itself would refuse more than 40,960"


def test_vllm_computes_8192_tokens_in_a_step_on_a_gpu() -> None:
    rollout = RolloutSection(engine="vllm", max_concurrent_trajectories=64)
    facts = read_model_facts(MODEL, rollout, max_tokens=512)
    arguments = partial(engine_arguments, MODEL, facts=facts, worker_extension="")
    assert arguments(rollout, on_cpu=False)["max_num_batched_tokens"] == 8192
    many = rollout.model_copy(update={"max_concurrent_trajectories": 10_000})
    assert arguments(many, on_cpu=False)["max_num_batched_tokens"] == 10_000, "vLLM refuses fewer than requests"


def test_vllm_returns_experts_where_routing_is_replayed() -> None:
    rollout = RolloutSection(engine="vllm")
    facts = read_model_facts(MODEL, rollout, max_tokens=512)
    arguments = partial(engine_arguments, MODEL, facts=facts, worker_extension="", on_cpu=False)
    assert not arguments(rollout)["enable_return_routed_experts"]
    replaying = arguments(rollout.model_copy(update={"replay_routing": True}))
    assert replaying["enable_return_routed_experts"]
    assert replaying["enable_prefix_caching"], "vLLM returns experts of cached prefixes from beside its cache"
