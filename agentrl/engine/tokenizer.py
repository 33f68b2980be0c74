"""Loads a model folder's tokenizer, in a process without torch too."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.class_path import import_by_path
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def load_tokenizer(model_path: str, class_path: str | None = None) -> "PreTrainedTokenizerFast":
    """Load the tokenizer of a model folder.

    Args:
        model_path: the folder.
        class_path: what `tokenizer_class` returned for it. Without, `AutoTokenizer` finds the class, for which it imports all
            of torch: four seconds and a quarter of a gigabyte for a process that has no other use of it.

    Raises:
        ConfigError: there is none, or it is not a fast one (only those encode outside the interpreter lock).
    """
    # Here and not above: it takes a second, and the driver of a run needs no tokenizer, only its workers do.
    from transformers import PreTrainedTokenizerFast

    if class_path is None:
        from transformers import AutoTokenizer as Tokenizer
    else:
        Tokenizer = import_by_path(class_path, key="the class of the tokenizer")
    try:
        tokenizer = Tokenizer.from_pretrained(model_path)
    except Exception as error:
        # Of a damaged `tokenizer.json`, transformers raises whatever comes up.
        raise ConfigError(
            f"model.path: no tokenizer in `{model_path}`: {type(error).__name__}: {error}; fetch it again"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(f"model.path: the tokenizer of `{model_path}` is not a fast one; add its `tokenizer.json`")
    return tokenizer


def end_token_ids(model_path: str) -> frozenset[int]:
    """Return the tokens that a model's own files call ends of a text: `eos_token_id` in its generation and model config."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        settings = read_model_file(model_path, name)
        for part in (settings, settings.get("text_config") or {}):
            ends = part.get("eos_token_id")
            found.update([ends] if isinstance(ends, int) else ends or [])
    return frozenset(found)


def read_model_file(model_path: str, name: str) -> dict[str, Any]:
    """Return a JSON file of a model, in its folder or on a hub; empty where there is none."""
    file = Path(model_path, name)
    if not Path(model_path).is_dir():
        from transformers.utils.hub import cached_file

        cached = cached_file(model_path, name, _raise_exceptions_for_missing_entries=False)
        file = Path(cached or "")
    return json.loads(file.read_text()) if file.is_file() else {}


def light_tokenizer_class(model_path: str) -> str:
    """Return the class path that a model's `tokenizer_config.json` names, which loads without torch.

    `AutoTokenizer` knows corrections for single models, so what is trained on is what `tokenizer_class` finds.
    """
    import transformers

    name = read_model_file(model_path, "tokenizer_config.json").get("tokenizer_class")
    found = getattr(transformers, str(name), None)
    is_fast = isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerFast)
    return f"transformers.{name if is_fast else 'PreTrainedTokenizerFast'}"


def text_decoder(model_path: str) -> Callable[[Sequence[int]], str]:
    """Return what decodes token ids of a model folder as the agent loop does, special tokens included.

    Raises:
        ConfigError: as `load_tokenizer`.
    """
    decode = load_tokenizer(model_path).backend_tokenizer.decode
    return lambda token_ids: decode(list(token_ids), skip_special_tokens=False)


def tokenizer_class(model_path: str) -> str | None:
    """Return the class path of a model folder's tokenizer; None: `AutoTokenizer` must find it, and torch is not here for that.

    Raises:
        ConfigError: as `load_tokenizer`.
    """
    if "torch" not in sys.modules:
        return None
    found = type(load_tokenizer(model_path))
    return f"{found.__module__}.{found.__qualname__}" if found.__module__.startswith("transformers.") else None
