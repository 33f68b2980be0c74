"""Memory estimates compared with closed forms, and with the tensors that autograd saves."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config.layout import Placement
from agentrl.config.schema.agent_loop import AgentLoopSection, AgentSection
from agentrl.config.schema.algorithm import LoraSection, RewardModelSection
from agentrl.config.schema.run import ActorSection, DataSection, ModelSection, RewardSection, RolloutSection, RunConfig
from agentrl.run.preflight.memory_model import (
    GIB,
    Memory,
    ModelSize,
    factor_weights,
    host_memory_of_process,
    kept_per_token,
    memory_of_process,
    shared_weights,
)
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.packing import pack_tokens
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import scored_states
from tests.training.training_cases import make_policy

ROOT = Path(__file__).resolve().parents[3]
EIGHT_BILLION = ModelSize(
    num_weights=8 * 10**9,
    vocabulary=150_000,
    num_layers=36,
    width=4096,
    heads_width=4096,
    kv_width=1024,
    inner_width=12_288,
)
SIZES = {"model.path": EIGHT_BILLION}
SMALL_SIZE = ModelSize(
    num_weights=0, vocabulary=48, num_layers=1, width=64, heads_width=128, kv_width=64, inner_width=160
)


def small(num_layers: int) -> Qwen3Config:
    """Return a configuration of `SMALL_SIZE` with another number of layers."""
    return Qwen3Config(
        vocab_size=48,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )


def config_of(actor: ActorSection | None = None, **rollout: Any) -> RunConfig:
    model = ModelSection(path="x", dtype="bfloat16")
    data = DataSection(max_prompt_tokens=rollout.pop("max_prompt_tokens", 2048))
    return RunConfig(data=data, model=model, actor=actor or ActorSection(), rollout=RolloutSection(**rollout))


def memory(
    role: str, *, num_processes: int = 1, on_gpu: bool = True, actor: ActorSection | None = None, **rollout: Any
) -> Memory:
    """Return the memory of one process of a role; `rollout` has keys of that section, and `max_prompt_tokens`."""
    placement = Placement(role=role, num_processes=num_processes)
    return memory_of_process(placement, config_of(actor, **rollout), SIZES, on_gpu=on_gpu)


def test_an_actor_needs_16_bytes_per_weight_and_a_reference_2():
    actor = memory("actor", num_processes=8)
    assert (actor.weights, actor.gradients, actor.optimiser) == (4e9, 4e9, 8e9)
    assert actor.certain == 16e9
    assert memory("actor_ref", num_processes=8).certain == 18e9
    assert memory("critic", num_processes=4).certain == 32e9, "the backbone defaults to the policy's"


def test_an_agents_trajectory_is_estimated_as_a_whole_micro_batch():
    config = config_of(max_prompt_tokens=100, max_response_tokens=100, prompts_per_step=1, samples_per_prompt=2)
    placement = Placement(role="actor", num_processes=1)
    agent = AgentLoopSection(agent=AgentSection(callable="my_agent.solve"))
    with_agent = config.model_copy(update={"agent_loop": agent})
    assert with_agent.max_session_tokens == config.actor.max_tokens_per_micro_batch > 2 * config.max_trajectory_tokens
    single, several = (memory_of_process(placement, each, SIZES, on_gpu=True) for each in (config, with_agent))
    full = memory_of_process(placement, config_of(prompts_per_step=1000), SIZES, on_gpu=True)
    assert single.activations_at_most < several.activations_at_most == full.activations_at_most


def test_the_checkpoint_copy_is_in_host_memory():
    assert memory("actor", num_processes=8, on_gpu=False).copies == 12e9
    assert memory("actor", num_processes=8).copies == 0
    on_host = host_memory_of_process(Placement(role="actor_ref", num_processes=8), config_of(), SIZES)
    assert on_host == Memory(copies=12e9)
    assert host_memory_of_process(Placement(role="rollout", num_processes=1), config_of(), SIZES) == Memory()


def test_shared_weights_have_the_engines_type_or_are_lora_factors():
    assert shared_weights(config_of(), SIZES) == Memory(copies=16e9)
    lora = config_of(ActorSection(lora=LoraSection(rank=16)))
    assert shared_weights(lora, SIZES) == Memory(copies=4 * factor_weights(EIGHT_BILLION, 16))


def test_a_smaller_shard_size_needs_more_memory_per_rank():
    assert memory("actor", num_processes=8, actor=ActorSection(shard_size=2)).certain == 64e9


def test_with_lora_only_the_factors_have_gradients_and_moments():
    actor = memory("actor", num_processes=8, actor=ActorSection(lora=LoraSection(rank=16)))
    per_layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12_288)
    assert factor_weights(EIGHT_BILLION, 16) == 16 * 36 * per_layer
    factors = 4 * factor_weights(EIGHT_BILLION, 16) / 8
    assert actor.weights == 2e9 + factors, "frozen weights have the type of the computation"
    assert actor.optimiser == 2 * actor.gradients == 2 * factors


def test_the_number_of_factors_is_pefts(tmp_path: Path):
    path = make_policy(tmp_path, small(1))
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(path), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    assert factor_weights(SMALL_SIZE, 4) == model.get_nb_trainable_parameters()[0]


def test_offloaded_models_are_in_host_memory():
    offloaded = ActorSection(cpu_offload=True)
    assert memory("actor_ref", num_processes=8, actor=offloaded).certain == 0
    placement = Placement(role="actor_ref", num_processes=8)
    on_host = host_memory_of_process(placement, config_of(offloaded), SIZES)
    assert on_host.certain == 18e9 + on_host.copies == 30e9


def test_an_engine_splits_its_copy_over_gpus_and_has_the_configured_cache():
    engine = memory("rollout", engine="vllm", tensor_parallel_size=4, kv_memory_gb=10)
    assert engine.engine == 4e9 + 10 * GIB
    assert memory("rollout", engine="vllm").engine == 16e9, "its cache takes the rest"


def test_the_embedded_engine_may_fill_a_row_per_trajectory():
    sizes: dict[str, Any] = {"max_concurrent_trajectories": 4, "max_prompt_tokens": 100, "max_response_tokens": 900}
    engine = memory("rollout", **sizes)
    assert engine.kv_cache_at_most == 4 * 1000 * 2 * 36 * 1024 * 2
    assert engine.certain == 16e9


def test_activations_are_bounded_by_the_tokens_of_a_step():
    few: dict[str, Any] = {
        "prompts_per_step": 1,
        "samples_per_prompt": 2,
        "max_prompt_tokens": 10,
        "max_response_tokens": 40,
    }
    logits = 2 * 100 * EIGHT_BILLION.vocabulary * 4
    kept = 100 * 36 * kept_per_token(EIGHT_BILLION) * 2
    assert memory("actor", **few).activations_at_most == kept + logits


def test_recomputed_layers_keep_only_their_inputs():
    plain, recomputed = (memory("actor", actor=ActorSection(activation_checkpointing=flag)) for flag in (False, True))
    assert recomputed.activations_at_most < 0.1 * plain.activations_at_most


def test_ranks_that_share_a_row_keep_only_their_part():
    alone, shared = (memory("actor", actor=ActorSection(sequence_parallel_size=size)) for size in (1, 2))
    logits = 2 * 2**28 * 4
    assert shared.activations_at_most - logits == (alone.activations_at_most - logits) / 2


def test_a_critic_keeps_an_actors_activations_without_logits():
    actor, critic = memory("actor"), memory("critic")
    assert actor.activations_at_most - critic.activations_at_most == 2 * 2**28 * 4
    recomputed = memory("critic", actor=ActorSection(activation_checkpointing=True))
    assert recomputed.activations_at_most < 0.1 * critic.activations_at_most


def test_frozen_models_keep_one_layer_at_a_time():
    one_layer = EIGHT_BILLION.width + kept_per_token(EIGHT_BILLION)
    assert memory("ref").activations_at_most == 16_384 * one_layer * 2 + 2 * 2**28 * 4
    config = config_of().model_copy(
        update={
            "reward": RewardSection(model=RewardModelSection(path="y")),
            "actor": ActorSection(max_tokens_per_micro_batch=20_000),
        }
    )
    small = replace(EIGHT_BILLION, num_layers=1, width=64)
    sizes = SIZES | {"reward.model.path": small}
    reward = memory_of_process(Placement(role="reward", num_processes=1), config, sizes, on_gpu=True)
    assert reward.activations_at_most == 20_000 * (64 + kept_per_token(small)) * 2


def test_models_of_one_process_do_not_compute_at_the_same_time():
    both, actor, critic = memory("actor_critic_ref"), memory("actor"), memory("critic")
    assert both.activations_at_most == actor.activations_at_most > critic.activations_at_most
    assert both.gradients == actor.gradients == critic.gradients
    assert both.optimiser == actor.optimiser + critic.optimiser


def test_activations_per_token_match_autograd(tmp_path: Path):
    def kept(num_layers: int) -> float:
        model = load_model(ModelSection(path=str(make_policy(tmp_path / str(num_layers), small(num_layers)))))
        own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        saved: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        row = pack_tokens([TokenisedExample(token_ids=[1] * 201, response_mask=[0] * 100 + [1] * 101)])
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            scored_states(model.get_decoder(), row)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / 4 / 200

    assert kept(3) - kept(2) == pytest.approx(kept_per_token(SMALL_SIZE), rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures host memory")
@pytest.mark.parametrize(
    ("width", "layers", "vocabulary", "dtype"),
    [
        (256, 4, 8192, "float32"),
        (384, 6, 16_384, "bfloat16"),
        pytest.param(512, 4, 32_768, "float32", marks=pytest.mark.soak),
    ],
)
def test_the_estimate_of_an_actor_is_near_its_measured_peak(width: int, layers: int, vocabulary: int, dtype: str):
    sizes = [f"--width={width}", f"--layers={layers}", f"--vocabulary={vocabulary}", f"--dtype={dtype}", "--tokens=256"]
    module = [sys.executable, "-m", "benchmarks.training.memory", *sizes]
    ran = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout.splitlines()[-1])
    assert 0.7 < measured["update_2"] / measured["estimated_update"] < 1.05, measured
    assert 0.6 < measured["update_3_and_checkpoint"] / measured["estimated_with_checkpoint"] < 1.05, measured


def test_one_rank_gathers_all_weights_and_several_gather_embedding_head_and_two_layers():
    root = 2 * EIGHT_BILLION.vocabulary * EIGHT_BILLION.width
    layer = (8 * 10**9 - root) / 36
    assert memory("actor").gathered_at_most == 2 * 8e9 + 6 * root
    assert memory("actor", num_processes=8).gathered_at_most == pytest.approx(2 * (root + 2 * layer) + 6 * root)
    assert memory("ref", num_processes=8).gathered_at_most == pytest.approx(2 * (root + 2 * layer))
    lora = ActorSection(lora=LoraSection(rank=16))
    assert memory("actor", actor=lora).gathered_at_most == pytest.approx(2 * (root + 2 * layer))


def test_memory_kept_by_the_allocator_counts_only_on_a_cpu():
    assert memory("actor").overhead_at_most == 0.75 * GIB
    on_cpu = memory("actor", on_gpu=False)
    live = on_cpu.weights + on_cpu.gradients + on_cpu.optimiser + on_cpu.activations_at_most + on_cpu.gathered_at_most
    assert on_cpu.overhead_at_most == pytest.approx(0.375 * GIB + 0.35 * live)


def test_memory_of_processes_on_one_device_adds_up():
    both = memory("actor", num_processes=8) + memory("rollout", engine="vllm", kv_memory_gb=1).times(2)
    assert both.certain == 16e9 + 2 * (16e9 + GIB)
    assert both.describe().startswith("activations at most ")
