"""Number of positions from `config.json`, for the forms in which models declare scaling."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from agentrl.models.attention_support import num_positions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({"model_type": "qwen3", "max_position_embeddings": 40_960}, 40_960),
        ({"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_scaling": YARN}, 131_072),
        ({"model_type": "qwen3", "max_position_embeddings": 131_072, "rope_parameters": YARN}, 131_072),
        ({"model_type": "qwen2", "max_position_embeddings": 256, "rope_scaling": {"type": "yarn", "factor": 2.0}}, 512),
        (
            {"model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}},
            8192,
        ),
        ({"model_type": "llama", "max_position_embeddings": 131_072, "rope_scaling": LLAMA3}, 131_072),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131_072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131_072,
        ),
        ({"model_type": "gpt2", "n_positions": 1024}, 1024),
    ],
)
def test_config_json_and_the_loaded_configuration_give_the_same_number_of_positions(
    settings: dict[str, Any], positions: int, tmp_path: Path
) -> None:
    assert num_positions(settings) == positions
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert num_positions(AutoConfig.from_pretrained(tmp_path).to_dict()) == positions


def test_a_configuration_without_positions_has_no_limit() -> None:
    assert num_positions({"model_type": "qwen3"}) is None
