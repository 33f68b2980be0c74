"""Loads a model folder's tokenizer, in a process without torch too."""

import sys
from typing import TYPE_CHECKING

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
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: no tokenizer in `{model_path}`: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(f"model.path: the tokenizer of `{model_path}` is not a fast one; add its `tokenizer.json`")
    return tokenizer


def tokenizer_class(model_path: str) -> str | None:
    """Return the class path of a model folder's tokenizer; None: `AutoTokenizer` must find it, and torch is not here for that.

    Raises:
        ConfigError: as `load_tokenizer`.
    """
    if "torch" not in sys.modules:
        return None
    found = type(load_tokenizer(model_path))
    return f"{found.__module__}.{found.__qualname__}" if found.__module__.startswith("transformers.") else None
