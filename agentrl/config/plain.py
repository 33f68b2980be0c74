"""Conversion of plain dicts (the `config` of a tool or a reward) into typed, checked models.

Such a dict belongs to a class that the run config only names, so the run's schema cannot describe it.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.config.problems import problems_of
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
        problems = "; ".join(problem for _, problem in problems_of(error, model, prefix=prefix))
        raise ConfigError(f"{source}: {problems}") from error
