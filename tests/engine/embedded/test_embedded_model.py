"""Reference: one float32 forward pass of the same model through transformers' own attention, sequence by sequence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    StableLmConfig,
)

from agentrl.config.schema.run import ModelSection
from agentrl.engine.embedded.kv_cache import Chunk
from agentrl.engine.embedded.model import LanguageModel
from agentrl.errors import ConfigError

TOKENS = np.random.default_rng(0).integers(0, 64, size=(8, 300), dtype=np.int32)


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def reference(folder: str, row: int, length: int) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model(input_ids=torch.from_numpy(TOKENS[row : row + 1, :length]).long()).logits[0, -1]


def load(folder: str) -> LanguageModel:
    return LanguageModel(ModelSection(path=folder), num_rows=8, max_tokens=1024)


def test_the_cache_does_not_grow_beyond_the_longest_sequence(save_model: Callable[..., str]) -> None:
    """Doubling alone would give 512 tokens a row where no sequence has more than 300, and the estimate counts 300."""
    model = LanguageModel(ModelSection(path=save_model()), num_rows=2, max_tokens=300)
    model.extend(TOKENS, [Chunk(0, 0, 299)])
    assert {buffer.shape[3] for buffer in model.cache.layers.values()} == {300}


def test_positions_beyond_those_named_before_yarn_are_computed(save_model: Callable[..., str]) -> None:
    folder = Path(save_model(max_positions=40))
    config = folder / "config.json"
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_parameters": yarn}))
    model = LanguageModel(ModelSection(path=str(folder)), num_rows=1, max_tokens=500)
    assert model.max_tokens == 128
    logits = model.extend(TOKENS, [Chunk(0, 0, 128)])
    torch.testing.assert_close(logits[0], reference(str(folder), 0, 128), atol=1e-5, rtol=1e-5)


def test_the_attention_of_cudnn_is_off_because_it_replans_for_every_length(save_model: Callable[..., str]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    load(save_model())
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_prefill_and_decode_in_one_packed_step_equal_separate_forwards(
    save_model: Callable[..., str], family: str
) -> None:
    folder = save_model(family)
    model = load(folder)
    model.extend(TOKENS, [Chunk(0, 0, 40), Chunk(1, 0, 7)])
    logits = model.extend(TOKENS, [Chunk(0, 40, 41), Chunk(1, 7, 8), Chunk(2, 0, 33), Chunk(4, 0, 2)])
    for got, (row, length) in zip(logits, [(0, 41), (1, 8), (2, 33), (4, 2)], strict=True):
        torch.testing.assert_close(got, reference(folder, row, length), atol=1e-5, rtol=1e-5)


def test_a_prompt_computed_in_chunks_equals_the_whole(save_model: Callable[..., str]) -> None:
    folder = save_model()
    model = load(folder)
    for start, stop in ((0, 100), (100, 101), (101, 299)):
        logits = model.extend(TOKENS, [Chunk(3, start, stop)])
    torch.testing.assert_close(logits[0], reference(folder, 3, 299), atol=1e-5, rtol=1e-5)


def test_rows_with_holes_between_them_equal_separate_forwards(save_model: Callable[..., str]) -> None:
    folder = save_model()
    model = load(folder)
    for row in range(8):
        model.extend(TOKENS, [Chunk(row, 0, 20 + row)])
    logits = model.extend(TOKENS, [Chunk(7, 27, 28), Chunk(1, 21, 22), Chunk(4, 24, 25)])
    for got, row in zip(logits, (7, 1, 4), strict=True):
        torch.testing.assert_close(got, reference(folder, row, 21 + row), atol=1e-5, rtol=1e-5)


def test_growing_and_copying_rows_keeps_the_numbers(save_model: Callable[..., str]) -> None:
    folder = save_model()
    model = load(folder)
    model.extend(TOKENS, [Chunk(0, 0, 200), Chunk(1, 0, 50)])
    model.cache.copy_prefix(0, 2, 200)
    tokens = TOKENS.copy()
    tokens[2] = TOKENS[0]
    capacity = model.cache.layers[0].shape[3]
    logits = model.extend(tokens, [Chunk(1, 50, 51), Chunk(2, 200, 280), Chunk(0, 200, 290)])
    assert model.cache.layers[0].shape[3] > capacity
    for got, (row, length) in zip(logits, [(1, 51), (0, 280), (0, 290)], strict=True):
        torch.testing.assert_close(got, reference(folder, row, length), atol=1e-5, rtol=1e-5)


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=16),
        Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=16, pad_token_id=0),
        Qwen3MoeConfig(**SMALL, **EXPERTS, num_key_value_heads=2, num_experts=4),
        DeepseekV3Config(
            **SMALL,
            **EXPERTS,
            **LATENT,
            num_key_value_heads=4,
            q_lora_rank=16,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_windows_experts_and_latent_attention_equal_separate_forwards(config: PretrainedConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load(str(tmp_path))
    model.extend(TOKENS, [Chunk(0, 0, 40), Chunk(1, 0, 7)])
    logits = model.extend(TOKENS, [Chunk(0, 40, 41), Chunk(1, 7, 30), Chunk(3, 0, 50)])
    for got, (row, length) in zip(logits, [(0, 41), (1, 30), (3, 50)], strict=True):
        torch.testing.assert_close(got, reference(str(tmp_path), row, length), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GptOssConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, pad_token_id=0), "s_aux"),
        (StableLmConfig(**SMALL, num_key_value_heads=2), "passes no arguments"),
    ],
    ids=["sinks", "no arguments"],
)
def test_attention_that_the_engine_does_not_compute_is_refused(
    config: PretrainedConfig, why: str, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=why):
        load(str(tmp_path))


def test_a_folder_without_a_model_is_a_config_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match=r"`model\.path`"):
        load(str(tmp_path_factory.mktemp("empty")))
