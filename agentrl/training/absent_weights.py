"""Refuses a model some of whose weights are in none of its files, or have another shape there.

Transformers draws those at random, and only warns.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from agentrl.errors import ConfigError

_NUM_NAMED = 3


def require_weights(model: PreTrainedModel, found: Mapping[str, Any], where: str, *, needs_head: bool = True) -> None:
    """Refuse a model that was not loaded whole.

    Args:
        model: what transformers has built.
        found: what it says of that (`output_loading_info`, with `ignore_mismatched_sizes`, without which it names none);
            tied weights are not missing where one of them is there.
        where: the key, and the folder that it names.
        needs_head: whether more than the backbone (`model.base_model`) is used.

    Raises:
        ConfigError: which weights are missing, and what the files have instead; or which have another shape.
    """
    needed = "" if needs_head or model.base_model is model else f"{model.base_model_prefix}."
    missing = {name for name in found["missing_keys"] if name.startswith(needed)}
    if not missing:
        _require_shapes({entry for entry in found["mismatched_keys"] if entry[0].startswith(needed)}, where)
        return
    others = set(found["unexpected_keys"])
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
    """Return the first few names, and how many more there are."""
    first = ", ".join(f"`{name}`" for name in sorted(names)[:_NUM_NAMED])
    return first if len(names) <= _NUM_NAMED else f"{first} and {len(names) - _NUM_NAMED} more"
