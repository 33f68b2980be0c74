"""Refuses a model some of whose weights are in none of its files: transformers draws those at random, and only warns."""

from collections.abc import Collection, Mapping
from typing import Any

from transformers import PreTrainedModel

from agentrl.errors import ConfigError

_NUM_NAMED = 3


def require_weights(model: PreTrainedModel, found: Mapping[str, Any], where: str, *, needs_head: bool = True) -> None:
    """Refuse a model that was not loaded whole.

    Args:
        model: what transformers has built.
        found: what it says of that (`output_loading_info`); tied weights are not missing where one of them is there.
        where: the key, and the folder that it names.
        needs_head: whether more than the backbone (`model.base_model`) is used.

    Raises:
        ConfigError: which weights are missing, and what the files have instead.
    """
    missing = set(found["missing_keys"])
    if not needs_head and model.base_model is not model:
        missing = {name for name in missing if name.startswith(f"{model.base_model_prefix}.")}
    if not missing:
        return
    others = set(found["unexpected_keys"])
    instead = f", and has {_named(others)}, which the model does not know" if others else ""
    raise ConfigError(
        f"{where} has no weights {_named(missing)}, which would be random numbers{instead}. Save the whole model with "
        "`save_pretrained`, or correct its `config.json` (such as `tie_word_embeddings`), so that both are of one model"
    )


def _named(names: Collection[str]) -> str:
    first = ", ".join(f"`{name}`" for name in sorted(names)[:_NUM_NAMED])
    return first if len(names) <= _NUM_NAMED else f"{first} and {len(names) - _NUM_NAMED} more"
