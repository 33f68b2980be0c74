"""Loading of a folder's language model, with all of its weights."""

import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

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


_EXPLANATIONS = {
    "Unrecognized configuration class": "transformers has no such model of its architecture. Name a decoder, such as Qwen3",
    "not recognize this architecture": "this version of transformers does not know its architecture. Use another model",
    "custom code": "its architecture is code in that folder, which is never run. Use an architecture that transformers has",
}
"""Errors of transformers that are long or advise something impossible here, by a part of their text."""


@contextmanager
def refuse_unloadable(kind: str, path: str, *, key: str, attention: str) -> Iterator[None]:
    """Translate errors of loading a model inside.

    Args:
        kind: kind of model, with its article.
        path: folder, or name on the hub.
        key: config key that names it.
        attention: name of the attention that the model is to use.

    Raises:
        ConfigError: loading failed.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        refuse_incomplete(error, f"`{key}`: {path}")
        text = " ".join(str(error).split())
        if isinstance(error, KeyError) and error.args == (attention,):
            problem = f"its architecture takes no other attention than its own ({error!r}). Use another architecture"
        else:
            named_class = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
            problem = next(
                (explanation for part, explanation in _EXPLANATIONS.items() if part in text),
                f"{named_class}{text.rstrip('.')}. Name a folder whose `config.json` and weights transformers loads",
            )
        raise ConfigError(f"`{key}`: cannot load {kind} from {path}: {problem}") from error


def refuse_incomplete(error: Exception, where: str) -> None:
    """Raise ConfigError if transformers could not build weights of the folder's tensors, such as stacked experts.

    Args:
        error: exception of transformers.
        where: config key and folder.
    """
    # Only the frame that raised it has their names.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    failed = getattr(frame.f_locals.get("loading_info"), "conversion_errors", None)
    if failed:
        raise ConfigError(
            f"{where} has only a part of what makes up {named(failed)}, such as some of the experts. Save the whole model "
            "with `save_pretrained`"
        ) from error


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
