"""Which attention packed training does not compute, as far as a model's configuration tells. No torch: the runner asks, too."""

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
"""What `config.json` says of the language model. Example: `{"model_type": "qwen3", "sliding_window": None, ...}`."""

_WITH_SINKS = frozenset({"deepseek_v4", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash"})
_WITH_POSITION_BIAS = frozenset({"inkling", "mpt"})


def unsupported_attention(settings: Settings) -> str | None:
    """Return what of a model's attention is not computed; None where nothing of that kind is known."""
    kind = settings.get("model_type")
    if settings.get("attn_logit_softcapping"):
        return "capped scores (`attn_logit_softcapping`)"
    if kind in _WITH_SINKS:
        return f"the attention sinks of `{kind}`"
    if kind in _WITH_POSITION_BIAS:
        return f"the position bias of `{kind}`"
    return None


def attention_window(settings: Settings) -> int | None:
    """Return the most tokens that a token of the narrowest layer attends to; None if all layers attend to all."""
    kinds = settings.get("layer_types")
    if settings.get("use_sliding_window") is False or (kinds is not None and "sliding_attention" not in kinds):
        return None
    return settings.get("sliding_window")
