"""Refusal of models whose files lack weights or have them in another shape; transformers only warns and draws random ones."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from agentrl.errors import ConfigError

_NUM_NAMED = 3


def require_weights(
    model: PreTrainedModel, loading_info: Mapping[str, Any], where: str, *, needs_head: bool = True
) -> None:
    """Refuse a model that was not loaded whole.

    Args:
        model: model as built by transformers.
        loading_info: its `output_loading_info`, loaded with `ignore_mismatched_sizes`.
        where: config key and folder.
        needs_head: True if more than the backbone (`model.base_model`) is used.

    Raises:
        ConfigError: weights are missing or have another shape; the error names them.
    """
    needed = "" if needs_head or model.base_model is model else f"{model.base_model_prefix}."
    missing = {name for name in loading_info["missing_keys"] if name.startswith(needed)}
    if not missing:
        _require_shapes({entry for entry in loading_info["mismatched_keys"] if entry[0].startswith(needed)}, where)
        return
    others = set(loading_info["unexpected_keys"])
    instead = f", and has {named(others)}, which the model does not know" if others else ""
    raise ConfigError(
        f"{where} has no weights {named(missing)}, which would be random numbers{instead}. Save the whole model with "
        "`save_pretrained`, or correct its `config.json` (such as `tie_word_embeddings`), so that both are of one model"
    )


def _require_shapes(mismatched: Collection[tuple[str, Sequence[int], Sequence[int]]], where: str) -> None:
    if not mismatched:
        return
    name, has, wanted = min(mismatched)
    raise ConfigError(
        f"{where} has other shapes than its `config.json` says of {named({entry[0] for entry in mismatched})}: {list(has)} "
        f"instead of {list(wanted)} for `{name}`, of which a part (an expert, say) may be missing. Save the whole model with "
        "`save_pretrained`, or correct its `config.json`, so that both are of one model"
    )


def named(names: Collection[str]) -> str:
    """Return the first few names, and the number of further ones."""
    first = ", ".join(f"`{name}`" for name in sorted(names)[:_NUM_NAMED])
    return first if len(names) <= _NUM_NAMED else f"{first} and {len(names) - _NUM_NAMED} more"
