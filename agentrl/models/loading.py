"""Loading of a folder's language model, with all of its weights."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.models.absent_weights import require_weights
from agentrl.models.loading_errors import refuse_unloadable


def load_causal_lm(
    path: str, *, key: str, dtype: torch.dtype, attention: str, needs_head: bool = True
) -> PreTrainedModel:
    """Return the causal LM of a folder, on the CPU.

    Args:
        path: folder, or name on the hub.
        key: config key that names it.
        dtype: type of the weights.
        attention: name of the attention, as registered with transformers.
        needs_head: True if the files must hold more than the backbone.

    Raises:
        ConfigError: the model does not exist, is no causal LM, lacks weights, or does not take this attention.
    """
    with refuse_unloadable("a causal LM", path, key=key, attention=attention):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `require_weights` names them
        )
    model, loading_info = loaded
    require_weights(model, loading_info, f"`{key}`: {path}", needs_head=needs_head)
    return model
