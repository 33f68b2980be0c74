"""Loads a model folder's tokenizer, also without torch."""

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

    `class_path` is the result of `tokenizer_class`. Without it `AutoTokenizer` finds the class and imports all of torch: four
    seconds and a quarter of a gigabyte for a process that has no other use for it.

    Raises:
        ConfigError: there is no tokenizer, or not a fast one (only those encode outside the interpreter lock).
    """
    # Imported here: it takes a second, and only workers need a tokenizer, not the driver.
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
    """Return the `eos_token_id` of a model's generation and model config."""
    end_ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        settings = read_model_file(model_path, name)
        for part in (settings, settings.get("text_config") or {}):
            ends = part.get("eos_token_id")
            end_ids.update([ends] if isinstance(ends, int) else ends or [])
    return frozenset(end_ids)


def read_model_file(model_path: str, name: str) -> dict[str, Any]:
    """Return a JSON file of a model, in its folder or on a hub; empty if it does not exist, ConfigError if it is damaged."""
    file = Path(model_path, name)
    if not Path(model_path).is_dir():
        from transformers.utils.hub import cached_file

        cached = cached_file(model_path, name, _raise_exceptions_for_missing_entries=False)
        file = Path(cached or "")
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: {file} cannot be read as JSON: {error}; fetch it again") from error
    return content


def light_tokenizer_class(model_path: str) -> str:
    """Return the class path in a model's `tokenizer_config.json`, which loads without torch.

    Training uses `tokenizer_class` instead, since `AutoTokenizer` corrects the class of some models.
    """
    import transformers

    name = read_model_file(model_path, "tokenizer_config.json").get("tokenizer_class")
    named = getattr(transformers, str(name), None)
    is_fast = isinstance(named, type) and issubclass(named, transformers.PreTrainedTokenizerFast)
    return f"transformers.{name if is_fast else 'PreTrainedTokenizerFast'}"


def text_decoder(model_path: str) -> Callable[[Sequence[int]], str]:
    """Return a decoder of token ids with special tokens; raises as `load_tokenizer`."""
    decode = load_tokenizer(model_path).backend_tokenizer.decode
    return lambda token_ids: decode(list(token_ids), skip_special_tokens=False)


def light_text_decoder(model_path: str) -> tuple[Callable[[str], list[int]], Callable[[Sequence[int]], str]]:
    """Return encoder and decoder of plain text, special tokens included, without transformers.

    Raises:
        ConfigError: the folder, or the cache of the hub, has no `tokenizer.json` that can be read.
    """
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    file: object = Path(model_path, "tokenizer.json")
    try:
        if not Path(model_path).is_dir():
            file = try_to_load_from_cache(model_path, "tokenizer.json")
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises plain exceptions for any damage.
        raise ConfigError(
            f"model.path: no `tokenizer.json` of `{model_path}` can be read: {error}; fetch it"
        ) from error
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda token_ids: tokenizer.decode(list(token_ids), skip_special_tokens=False),
    )


def tokenizer_class(model_path: str) -> str | None:
    """Return the class path of a model folder's tokenizer; None without torch, or for a class outside transformers."""
    if "torch" not in sys.modules:
        return None
    cls = type(load_tokenizer(model_path))
    return f"{cls.__module__}.{cls.__qualname__}" if cls.__module__.startswith("transformers.") else None
