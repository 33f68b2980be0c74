"""Checks of the values in a model's `config.json` that everybody computes with: each has the kind that it must have."""

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.errors import ConfigError

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
"""Whole numbers above 0, wherever a file names them."""
_OPTIONAL_SIZES = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "n_positions",
    "sliding_window",
    "original_max_position_embeddings",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
"""The same, or null."""
_MOST_LAYERS, _MOST = 10_000, 10**9
_OBJECTS = ("rope_parameters", "rope_scaling", "text_config")
"""Objects, or null."""


def check_model_settings(settings: Mapping[str, Any], *, where: str) -> None:
    """Refuse a `config.json` with values of a wrong kind, without an architecture, or of an encoder-decoder.

    Args:
        settings: what the file holds.
        where: the key that names the model, and the file.

    Raises:
        ConfigError: the value, and what it must be.
    """
    for name, value, wanted in _wrong_kinds(settings):
        raise _wrong_value(where, name, value, wanted)
    check_token_ids(settings, where=where)
    kind = settings.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ConfigError(
            f"{where} names no architecture: `model_type` is {kind!r:.60}. Name the folder of a causal LM, such as Qwen3"
        )
    if settings.get("is_encoder_decoder"):
        raise ConfigError(
            f"{where}: `{kind}` is an encoder-decoder, and only models that continue a text can be trained; use a causal LM, "
            "such as Qwen3 or Llama"
        )


def check_token_ids(settings: Mapping[str, Any], *, where: str) -> None:
    """Refuse an `eos_token_id` that is no token id, nor a list of some.

    Raises:
        ConfigError: the value.
    """
    ends = settings.get("eos_token_id")
    for token_id in ends if isinstance(ends, list) else [ends]:
        if token_id is not None and (isinstance(token_id, bool) or not isinstance(token_id, int)):
            raise _wrong_value(where, "eos_token_id", ends, "a token id or a list of them")


def _wrong_value(where: str, name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{where}: `{name}` is {value!r:.60}, and must be {wanted}; correct it, or fetch the file again")


def _wrong_kinds(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the value, and what it must be."""
    for name in _OBJECTS:
        if not isinstance(settings.get(name), Mapping | None):
            yield f"{prefix}{name}", settings[name], "an object"
    for name in (*_SIZES, *_OPTIONAL_SIZES):
        value = settings.get(name, 1)
        if value is None and name in _OPTIONAL_SIZES:
            continue
        if isinstance(value, list) and name not in _SIZES[:4]:
            continue  # some architectures have a size for each layer
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield f"{prefix}{name}", value, "a whole number above 0"
        elif value > (most := _MOST_LAYERS if name == "num_hidden_layers" else _MOST):
            yield f"{prefix}{name}", value, f"at most {most}"
    for name in ("rope_parameters", "rope_scaling"):
        for part, value in (settings.get(name) or {}).items():
            if part in ("factor", "rope_theta") and (isinstance(value, bool) or not isinstance(value, int | float)):
                yield f"{prefix}{name}.{part}", value, "a number"
    if text := settings.get("text_config"):
        yield from _wrong_kinds(text, "text_config.")
