"""Models read into shards equal those that transformers loads, and no rank holds a whole one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentrl.config.schema.run import ActorSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.training.model.decoder import load_model
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.parallel import Parallel, full_tensors, open_store
from tests.training.allocations import weight_bytes
from tests.training.architecture_cases import MIXTURES, tiny_config
from tests.training.loading_ranks import Loaded, load_rank
from tests.training.training_cases import VOCABULARY, alone, make_policy

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "tied": Qwen3Config(**SMALL, tie_word_embeddings=True),
    "untied": Qwen3Config(**SMALL, tie_word_embeddings=False),
    "scaled_rope": LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "scaled_embedding": Gemma3TextConfig(**SMALL),
}


def assert_read(path: str, *, in_parts: bool) -> None:
    """Load a model as the roles do, and compare it with transformers' own."""
    expected = load_model(ModelSection(path=path))
    parallel = Parallel(alone())
    try:
        opened = open_model(ModelSection(path=path))
        assert (opened.files is not None) == in_parts
        shard_model(opened.model, opened.files, parallel, ActorSection(), dtype=torch.float32)
        read = dict(full_tensors(opened.model, torch.float32))
    finally:
        parallel.close()
    assert read.keys() == dict(full_tensors(expected, torch.float32)).keys()
    for name, tensor in full_tensors(expected, torch.float32):
        assert torch.equal(read[name], tensor), name
    buffers = dict(expected.named_buffers())
    assert buffers
    for name, buffer in opened.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert opened.model.generation_config.to_dict() == expected.generation_config.to_dict()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_model_read_in_parts_equals_that_of_transformers(tmp_path: Path, config: object):
    assert_read(str(make_policy(tmp_path, config)), in_parts=True)


def test_several_files_with_an_index_are_read(tmp_path: Path):
    model = AutoModelForCausalLM.from_pretrained(make_policy(tmp_path / "one"))
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    assert_read(str(tmp_path / "many"), in_parts=True)


def test_files_with_other_names_are_left_to_transformers(tmp_path: Path):
    AutoModel.from_pretrained(make_policy(tmp_path / "policy")).save_pretrained(tmp_path / "decoder")
    assert_read(str(tmp_path / "decoder"), in_parts=False)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_experts_of_a_mixture_are_read_in_parts(tmp_path: Path, kind: str):
    assert_read(str(make_policy(tmp_path, tiny_config(kind))), in_parts=True)


def test_a_broken_file_is_named(tmp_path: Path):
    folder = make_policy(tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ConfigError, match=r"model\.path.*cannot be read"):
        open_model(ModelSection(path=str(folder)))


WIDE: dict[str, Any] = SMALL | {"vocab_size": 20_000, "hidden_size": 128, "intermediate_size": 512}
EXPERTS: dict[str, Any] = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 256}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wide", [Qwen3Config(**WIDE), Qwen3MoeConfig(**WIDE, **EXPERTS)], ids=["dense", "experts"])
def test_two_ranks_hold_half_a_model_each(tmp_path: Path, wide: PretrainedConfig):
    policy = AutoModelForCausalLM.from_config(wide, dtype=torch.float32)
    policy.save_pretrained(tmp_path / "policy", max_shard_size="1MB")
    store = open_store("127.0.0.1")
    arguments = (2, store.port, str(tmp_path / "policy"), str(tmp_path))
    multiprocessing.spawn(load_rank, args=arguments, nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    loaded: list[Loaded] = [torch.load(tmp_path / f"loaded{rank}.pt", weights_only=False) for rank in (0, 1)]
    for rank in loaded:
        assert rank.peak_bytes < 0.6 * weight_bytes(policy)
    for name, parameter in policy.named_parameters():
        assert torch.equal(loaded[0].weights[name], parameter), name
