"""Loads the language model of a folder, whole or not at all."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.training.absent_weights import require_weights
from agentrl.training.loading_errors import telling_why


def load_causal_lm(
    path: str, *, key: str, dtype: torch.dtype, attention: str, needs_head: bool = True
) -> PreTrainedModel:
    """Return the causal LM of a folder, on the CPU.

    Args:
        path: the folder, or a name on a hub.
        key: of the config, which names it.
        dtype: of the weights.
        attention: registered with transformers.
        needs_head: whether the files must hold more than the backbone.

    Raises:
        ConfigError: it is not there, no causal LM, lacks weights, or does not take this attention.
    """
    with telling_why("a causal LM", path, key=key, attention=attention):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are named below
        )
    model, found = loaded
    require_weights(model, found, f"`{key}`: {path}", needs_head=needs_head)
    return model
