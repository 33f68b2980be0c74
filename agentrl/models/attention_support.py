"""Limits of a model by its configuration: tested architectures, attention sinks and positions. Without torch."""

from collections.abc import Mapping
from typing import Any

TESTED = frozenset(
    {
        *("apertus", "arcee", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4"),
        *("gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss"),
        *("granite", "granitemoe", "helium", "llama", "minimax_m2", "ministral", "mistral", "mixtral"),
        *("olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss"),
        *("smollm3", "starcoder2"),
    }
)
"""Architectures whose packed log-probabilities and gradients are tested; others are tried on a small model first."""

Settings = Mapping[str, Any]
"""Content of `config.json` about the language model. Example: `{"model_type": "qwen3", "sliding_window": None, ...}`."""

_LENGTHENING = ("yarn", "linear")
"""Rotary scalings whose `factor` adds positions; with `llama3`, `max_position_embeddings` includes it already."""
_WITH_SINKS = frozenset({"deepseek_v4", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash"})


def has_sinks(settings: Settings) -> bool:
    """Return True if a model is known to have attention sinks; the embedded engine does not compute them."""
    return settings.get("model_type") in _WITH_SINKS


def num_positions(settings: Settings) -> int | None:
    """Return a model's number of positions; None if its configuration does not say.

    `max_position_embeddings` may be the number before or after the scaling; this takes the larger one. Engines, warm starts and
    `--check` all use it.
    """
    declared = settings.get("max_position_embeddings") or settings.get("n_positions")  # GPT-2's name
    if not isinstance(declared, int):
        return None
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    # Gemma 3 always declares the number after the scaling.
    lengthens = _kind_of(rope) in _LENGTHENING and "gemma3" not in str(settings.get("model_type"))
    factor = (rope.get("factor") if lengthens else None) or 1
    return max(declared, int((_before_scaling(rope, settings) or declared) * factor))


def exact_positions(settings: Settings) -> int | None:
    """Return the length up to which rotary frequencies are constant; None: at any length.

    Beyond it (dynamic NTK, longrope) they depend on the longest sequence of a packed row, or of an engine's batch.
    """
    scaling = settings.get("rope_scaling") or settings.get("rope_parameters") or {}  # the older name goes first
    limits: list[int | None] = []
    # Some models have a set of settings per kind of layer.
    for rope in (scaling, *(part for part in scaling.values() if isinstance(part, Mapping))):
        declared = settings.get("max_position_embeddings")
        if _kind_of(rope) in ("longrope", "su"):  # an older name of the same
            limits.append(_before_scaling(rope, settings) or declared)
        elif "dynamic" in _kind_of(rope):
            limits.append(declared)
    return min((limit for limit in limits if limit is not None), default=None)


def _kind_of(rope: Settings) -> str:
    return str(rope.get("rope_type") or rope.get("type"))


def _before_scaling(rope: Settings, settings: Settings) -> int | None:
    return settings.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
