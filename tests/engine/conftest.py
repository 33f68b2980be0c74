"""Tiny random models, and engines over them that are closed when the test ends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.embedded.engine import TransformersEngine

VOCABULARY = 64
_FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def _build(family: str, *, seed: int, tied: bool, max_positions: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config_class, model_class = _FAMILIES[family]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        initializer_range=0.3,  # sharp enough that greedy tokens do not hang on float noise
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return model_class(config)


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[..., str]:
    """Save a tiny random model; returns its folder."""

    def save(
        family: str = "qwen3",
        *,
        seed: int = 0,
        tied: bool = False,
        eos: int | list[int] | None = None,
        max_positions: int = 1024,
    ) -> str:
        folder = tmp_path / f"{family}-{seed}-{tied}-{eos}"
        model = _build(family, seed=seed, tied=tied, max_positions=max_positions)
        if eos is not None:
            assert model.generation_config is not None
            model.generation_config.eos_token_id = eos
        model.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture
async def start_engine() -> AsyncIterator[Callable[..., Awaitable[TransformersEngine]]]:
    """Start an engine on a model folder; keywords go to `RolloutSection`."""
    engines = []

    async def start(folder: str, *, max_tokens: int = 512, **rollout: Any) -> TransformersEngine:
        settings: dict[str, Any] = {"max_concurrent_trajectories": 8}
        section = RolloutSection(**(settings | rollout))
        engine = TransformersEngine(ModelSection(path=folder), section, max_tokens=max_tokens)
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.aclose()
