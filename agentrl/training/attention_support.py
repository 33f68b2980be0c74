"""Limits of a model by its configuration: attention that is not computed, and positions. No torch: the runner asks, too."""

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
"""Architectures whose packed log-probabilities and gradients the tests compare; of others, a small model is tried first."""

Settings = Mapping[str, Any]
"""What `config.json` says of the language model. Example: `{"model_type": "qwen3", "sliding_window": None, ...}`."""


_LENGTHENING = ("yarn", "linear")
"""Rotary scalings whose `factor` gives a model more positions; that of `llama3` is counted in `max_position_embeddings`."""
_WITH_SINKS = frozenset({"deepseek_v4", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash"})


def unsupported_attention(settings: Settings) -> str | None:
    """Return what of a model's attention is not computed; None where nothing of that kind is known."""
    if settings.get("attn_logit_softcapping"):
        return "capped scores (`attn_logit_softcapping`)"
    return None


def has_sinks(settings: Settings) -> bool:
    """Return whether a model has attention sinks, as far as is known: training computes them, the embedded engine does not."""
    return settings.get("model_type") in _WITH_SINKS


def num_positions(settings: Settings) -> int | None:
    """Return how many positions a model has; None where its configuration does not say it.

    `max_position_embeddings` may be the number before or after the scaling: the larger reading counts. Engines, warm starts and
    `--check` all take this number, since a smaller one would cut trajectories that the check accepted.
    """
    named = settings.get("max_position_embeddings") or settings.get("n_positions")  # the name of GPT-2
    if not isinstance(named, int):
        return None
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    # Gemma 3 always names the number after the scaling.
    lengthens = _kind_of(rope) in _LENGTHENING and "gemma3" not in str(settings.get("model_type"))
    factor = (rope.get("factor") if lengthens else None) or 1
    return max(named, int((_before_scaling(rope, settings) or named) * factor))


def exact_positions(settings: Settings) -> int | None:
    """Return up to which length a sequence has the same rotary frequencies as any other; None: at any length.

    Beyond it (dynamic NTK, longrope) they depend on the longest sequence of a packed row, or of an engine's batch.
    """
    named = settings.get("rope_scaling") or settings.get("rope_parameters") or {}  # the older name goes first
    kinds = [
        each for each in (named, *named.values()) if isinstance(each, Mapping)
    ]  # some have one set per kind of layer
    limits = [_exact_positions(kind, settings) for kind in kinds]
    return min((limit for limit in limits if limit is not None), default=None)


def _exact_positions(rope: Settings, settings: Settings) -> int | None:
    kind = _kind_of(rope)
    if kind in ("longrope", "su"):  # the same by an older name
        return _before_scaling(rope, settings) or settings.get("max_position_embeddings")
    return settings.get("max_position_embeddings") if "dynamic" in kind else None


def _kind_of(rope: Settings) -> str:
    return str(rope.get("rope_type") or rope.get("type"))


def _before_scaling(rope: Settings, settings: Settings) -> int | None:
    return settings.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
