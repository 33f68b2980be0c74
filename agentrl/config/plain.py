"""Conversion of plain dicts (the `config` of a tool or a reward) into typed, checked models.

Such a dict belongs to a class that the run config only names, so the run's schema cannot describe it.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.errors import ConfigError


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as `{"section.key": value}`, to compare configs and to check every value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


class PlainConfig(BaseModel):
    """Base of these models: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Model = TypeVar("Model", bound=PlainConfig)


def read_plain_config(model: type[Model], config: Mapping[str, Any], *, source: str, prefix: str = "") -> Model:
    """Return `config` as a `model`.

    Args:
        model: class with the expected fields.
        config: plain data, as loaded from YAML.
        source: start of the message, such as a file name.
        prefix: prefix of each key, such as `tools[0].config.`.

    Raises:
        ConfigError: names `source`, every wrong key in full, its value, and the nearest known key.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        problems = "; ".join(_describe(item, model, prefix) for item in error.errors(include_url=False))
        raise ConfigError(f"{source}: {problems}") from error


def _describe(error: Any, model: type[PlainConfig], prefix: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = prefix + ".".join(path)
    if error["type"] == "extra_forbidden":
        near = get_close_matches(path[-1], model.model_fields, n=1)
        known = ", ".join(f"`{name}`" for name in model.model_fields)
        return f"unknown key `{key}`. " + (f"Did you mean `{near[0]}`?" if near else f"Known keys: {known}")
    if error["type"] == "missing":
        return f"`{key}` is missing"
    reason = str(error["msg"])
    return f"`{key}` is {error['input']!r}: {reason[:1].lower()}{reason[1:]}"
