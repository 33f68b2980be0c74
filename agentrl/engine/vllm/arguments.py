"""vLLM's arguments and environment, from a run's config and the facts of the model."""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.models.attention_support import num_positions

_CPU_BLOCK_TOKENS = 128
"""vLLM's default on CPU."""
_CPU_TOKENS_PER_STEP = 2048
_GPU_TOKENS_PER_STEP = 8192
"""vLLM's default, 2,048 outside its own server, would compute the prompts of a group one after another."""
_BYTES_PER_GB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about the model, known without loading it."""

    vocabulary_size: int
    max_tokens: int
    """Context length, prompt and completion together."""
    weights: dict[str, torch.Tensor]
    """Tensors on the meta device, keyed by checkpoint name; tied ones are the same object."""
    kv_bytes_per_token: int
    """KV bytes on one tensor-parallel rank."""


def read_model_facts(model: ModelSection, rollout: RolloutSection, *, max_tokens: int) -> ModelFacts:
    """Read the model's folder, without its weights; `max_tokens` is the context that a trajectory needs."""
    config = AutoConfig.from_pretrained(model.path, trust_remote_code=False)
    with torch.device("meta"):
        empty: Any = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    return ModelFacts(
        vocabulary_size=text.vocab_size,
        max_tokens=min(max_tokens, num_positions(text.to_dict()) or max_tokens),
        weights=empty.state_dict(keep_vars=True),
        kv_bytes_per_token=_kv_bytes_per_token(text, getattr(torch, model.dtype), rollout.tensor_parallel_size),
    )


def engine_arguments(
    model: ModelSection, rollout: RolloutSection, facts: ModelFacts, *, on_cpu: bool, worker_extension: str
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `AsyncEngineArgs`; tested on CPU only."""
    arguments: dict[str, Any] = {
        "model": model.path,
        "dtype": model.dtype,
        "max_model_len": facts.max_tokens,
        "max_num_seqs": rollout.max_concurrent_trajectories,
        "tensor_parallel_size": rollout.tensor_parallel_size,
        "data_parallel_size": rollout.data_parallel_size,
        # By default, vLLM would ask Ray for workers inside a Ray actor.
        "distributed_executor_backend": "mp" if rollout.tensor_parallel_size > 1 else "uni",
        "worker_extension_cls": worker_extension,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "enforce_eager": on_cpu,  # no CUDA graphs
        "enable_sleep_mode": not on_cpu,
        "skip_tokenizer_init": not rollout.stop,  # vLLM finds stop strings in text
        "disable_log_stats": True,  # ours replace them
        "enable_return_routed_experts": rollout.replay_routing,
    }
    if not on_cpu:
        arguments["max_num_batched_tokens"] = max(_GPU_TOKENS_PER_STEP, rollout.max_concurrent_trajectories)
    else:
        # Chunked prefill with seeds kills vLLM's core on CPU ("CPU Generator does not use offset").
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(facts.max_tokens, _CPU_TOKENS_PER_STEP),
        }
    if kv_bytes := _kv_bytes(rollout, facts, on_cpu=on_cpu):
        # The utilization is then only the share that must be free at the start; a shared GPU does not have the default, 0.9.
        arguments |= {"kv_cache_memory_bytes": kv_bytes, "gpu_memory_utilization": 0.1}
    return arguments


@contextlib.contextmanager
def process_environment(
    rollout: RolloutSection, own: dict[str, str], *, on_cpu: bool, num_threads: int
) -> Iterator[None]:
    """Set the variables with which vLLM's processes start, and undo all changes at the end, vLLM's too (`LD_PRELOAD`).

    `own` are variables that mark the processes of this vLLM, which share `num_threads` CPU threads.
    """
    before = dict(os.environ)
    os.environ |= {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
        "VLLM_NO_USAGE_STATS": "1",  # vLLM reports usage by default
        # vLLM reads `max_position_embeddings` as the length after YaRN, also if it is that before; `num_positions` knows.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    } | own
    # Its warnings report each tied head and each choice that it makes.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    if on_cpu:
        threads = max(1, num_threads // (rollout.tensor_parallel_size * rollout.data_parallel_size))
        os.environ |= {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # actor and judge use the same cores in turn
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less: the core computes itself
        }
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


def _kv_bytes_per_token(config: PretrainedConfig, dtype: torch.dtype, tensor_parallel_size: int) -> int:
    num_heads = config.num_attention_heads
    kv_heads = max(1, (getattr(config, "num_key_value_heads", None) or num_heads) // tensor_parallel_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return 2 * config.num_hidden_layers * kv_heads * head_dim * dtype.itemsize


def _kv_bytes(rollout: RolloutSection, facts: ModelFacts, *, on_cpu: bool) -> int:
    """Return the KV memory of one rank; 0 lets vLLM take what is free on the device."""
    if rollout.kv_memory_gb or not on_cpu:
        return round(rollout.kv_memory_gb * _BYTES_PER_GB)
    blocks_each = -(-facts.max_tokens // _CPU_BLOCK_TOKENS)
    num_trajectories = -(-rollout.max_concurrent_trajectories // rollout.data_parallel_size)
    num_blocks = num_trajectories * blocks_each + 1  # vLLM keeps one for itself
    return num_blocks * _CPU_BLOCK_TOKENS * facts.kv_bytes_per_token
