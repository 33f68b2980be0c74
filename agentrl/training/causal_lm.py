"""Loads the language model of a folder, whole or not at all."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.training.absent_weights import require_weights
from agentrl.training.attention_support import exact_positions
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
    limit_positions(model, f"`{key}`: {path}")
    return model


def limit_positions(model: PreTrainedModel, where: str) -> None:
    """Refuse sequences that would change the rotary frequencies of their neighbours (`exact_positions`), when they come."""
    limit = exact_positions(model.config.get_text_config().to_dict())
    if limit is None:
        return

    def refuse_longer(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        positions = named.get("position_ids", arguments[1] if len(arguments) > 1 else None)
        if positions is not None and int(positions.max()) >= limit:
            raise ConfigError(
                f"{where}: its positions are scaled by the length of a sequence beyond {limit} tokens, which is not computed "
                "for several sequences together; make trajectories shorter, or use another model"
            )

    for module in model.modules():
        # transformers itself looks at the largest position there, so that a GPU need not wait once more.
        if hasattr(module, "rope_type"):
            module.register_forward_pre_hook(refuse_longer, with_kwargs=True)
