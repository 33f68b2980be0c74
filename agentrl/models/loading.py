"""Loading of a folder's language model, with all of its weights."""

import re
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
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


_ARCHITECTURE = re.compile(r"configuration class <class '[\w.]*\.(\w+)Config'>")


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
        where = f"`{key}`: cannot load {kind} from {path}"
        if isinstance(error, KeyError) and error.args == (attention,):
            raise ConfigError(
                f"{where}: its architecture takes no other attention than its own ({error!r}); use another architecture"
            ) from error
        if "Unrecognized configuration class" in str(error):
            architecture = _ARCHITECTURE.search(str(error))
            raise ConfigError(
                f"{where}: transformers has none of its architecture{f' (`{architecture[1]}`)' if architecture else ''}. "
                "Name a folder of a decoder, such as Qwen3 or Llama"
            ) from error
        if "does not recognize this architecture" in str(error):
            raise ConfigError(
                f"{where}: this version of transformers does not know its architecture. Use another model, or a version that "
                "knows it"
            ) from error
        if "custom code" in str(error):
            raise ConfigError(
                f"{where}: its architecture is code in that folder, which is never run (`trust_remote_code`). Use an "
                "architecture that transformers has"
            ) from error
        needs_class = not isinstance(error, OSError | ValueError | RuntimeError)
        message = f"{type(error).__name__}: " if needs_class else ""
        message += " ".join(str(error).split())
        raise ConfigError(
            f"{where}: {message.rstrip('.')}. Name a folder whose `config.json` and weights transformers loads"
        ) from error


def refuse_incomplete(error: Exception, where: str) -> None:
    """Refuse a folder if `error` is that transformers could not build weights of its tensors, such as stacked experts.

    Args:
        error: exception of transformers.
        where: config key and folder.

    Raises:
        ConfigError: it is; the error names the weights.
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
