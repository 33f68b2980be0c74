"""Arguments that a tool's schema allows, for a trial call: the smallest that have every required parameter."""

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from agentrl.tools.base import ToolSchema

_MAX_DEPTH = 8
_MAX_LENGTH = 100
"""A schema that asks for longer texts or lists has no sample."""
_DIGIT = "1"
"""Text that is a word, a number, a formula and a program at once."""


def sample_arguments(schema: ToolSchema) -> dict[str, Any] | None:
    """Return arguments for one call; None where none could be made that the schema allows.

    >>> sample_arguments(ToolSchema(name="f", description="", parameters={"properties": {"n": {"type": "integer"}}}))
    {'n': 1}
    """
    parameters = schema.parameters
    wanted = parameters.get("required", list(parameters.get("properties", {})))
    arguments = _sample({**parameters, "type": "object", "required": wanted}, parameters, _MAX_DEPTH)
    return arguments if Draft202012Validator(parameters).is_valid(arguments) else None


def _sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth <= 0:
        return _DIGIT
    group, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    if name:  # as pydantic writes them: `#/$defs/NAME`
        schema = root.get(group, {}).get(name, {})
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], root, depth - 1)
    kind = schema.get("type", "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "integer" | "number":
            return schema.get("minimum", min(1, schema.get("maximum", 1)))
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            return [_sample(schema.get("items", {}), root, depth - 1)] * min(schema.get("minItems", 0), _MAX_LENGTH)
        case "object":
            properties = schema.get("properties", {})
            return {name: _sample(properties.get(name, {}), root, depth - 1) for name in schema.get("required", [])}
        case _:
            return _DIGIT * max(1, min(schema.get("minLength", 1), _MAX_LENGTH))
