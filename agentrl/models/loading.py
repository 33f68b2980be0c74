"""Loading of a folder's language model, with all of its weights."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.errors import ConfigError

_NUM_NAMED = 3
_MAX_CHARS = 200


def require_weights(
    model: PreTrainedModel, loading_info: Mapping[str, Any], where: str, *, needs_head: bool = True
) -> None:
    """Raise ConfigError for a model that was not loaded whole; it names the weights that are missing or have another shape.

    `loading_info` is transformers' `output_loading_info`, with `ignore_mismatched_sizes`; `where` is config key and folder.
    Without `needs_head` only the backbone (`model.base_model`) is used.
    """
    needed = "" if needs_head or model.base_model is model else f"{model.base_model_prefix}."
    missing = {name for name in loading_info["missing_keys"] if name.startswith(needed)}
    mismatched = {entry[0]: entry[1:] for entry in loading_info["mismatched_keys"] if entry[0].startswith(needed)}
    if missing:
        others = set(loading_info["unexpected_keys"])
        instead = f", and has {named(others)}, which the model does not know" if others else ""
        problem = f"has no weights {named(missing)}, which would be random numbers{instead}"
    elif mismatched:
        name = min(mismatched)
        has, wanted = map(list, mismatched[name])
        problem = f"has other shapes than its `config.json` says of {named(mismatched)}: {has} instead of {wanted}"
    else:
        return
    raise ConfigError(
        f"{where} {problem}. Save the whole model with `save_pretrained`, or correct its `config.json` (such as "
        "`tie_word_embeddings`), so that both are of one model"
    )


def named(names: Collection[str]) -> str:
    """Return the first few names, and the number of further ones."""
    first = ", ".join(f"`{name}`" for name in sorted(names)[:_NUM_NAMED])
    return first if len(names) <= _NUM_NAMED else f"{first} and {len(names) - _NUM_NAMED} more"


@contextmanager
def refuse_unloadable(kind: str, path: str, *, key: str, attention: str) -> Iterator[None]:
    """Turn errors of loading a model inside into ConfigErrors.

    `kind` is the kind of model with its article, `path` a folder or name on the hub that the config names by `key`, `attention`
    the registered name of the attention that the model is to use.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:_MAX_CHARS]  # transformers lists every model that it knows
        problem = f"{type(error).__name__}: {text}. Name a folder whose `config.json` and weights transformers loads"
        if isinstance(error, KeyError) and error.args == (attention,):
            problem = f"its architecture takes no other attention than its own ({error!r}). Use another architecture"
        raise ConfigError(f"`{key}`: cannot load {kind} from {path}: {problem}") from error


def load_causal_lm(
    path: str, *, key: str, dtype: torch.dtype, attention: str, needs_head: bool = True
) -> PreTrainedModel:
    """Return the causal LM of a folder, on the CPU; without `needs_head` the files may hold the backbone only.

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
