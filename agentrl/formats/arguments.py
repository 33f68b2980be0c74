"""Values of arguments by the types of a tool's schema, as lax as pydantic: `"5"` for an integer is 5."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Parameters = Mapping[str, Mapping[str, Any]]
"""JSON schema of each parameter, keyed by tool and parameter."""

_LITERALS = {"true": True, "false": False, "null": None, "none": None}
"""Templates write Python's `True` and `None`, too."""
_TYPES: dict[type, set[str]] = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    type(None): {"null"},
    dict: {"object"},
    list: {"array"},
}


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> Parameters:
    """Return the parameters of tools in the form that chat templates take."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: (function.get("parameters") or {}).get("properties") or {} for function in functions}


def typed(arguments: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, with text read as a number, boolean, object or list where the schema takes no text."""
    return {key: _retyped(value, schemas.get(key)) for key, value in arguments.items()}


def value_of(text: str, schema: Any) -> Any:
    """Return the value of an argument that a format writes without quotes.

    Text stays text where the schema takes text; where the schema gives no type, what reads as JSON is not text.
    """
    types = types_of(schema)
    if "string" in types:
        return None if "null" in types and text in ("null", "None") else text
    return _read_as(types, text)


def _retyped(value: Any, schema: Any) -> Any:
    types = types_of(schema)
    return _read_as(types, value) if isinstance(value, str) and types and "string" not in types else value


def _read_as(types: set[str], text: str) -> Any:
    """Return the value that `text` writes if it has one of the `types`, or any JSON type without them; else the text."""
    value = _read(text)
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    fits = not types or bool(_TYPES[type(value)] & types)
    return value if fits and not isinstance(value, str) else text


def _read(text: str) -> Any:
    literal = text.strip()
    if literal.lower() in _LITERALS:
        return _LITERALS[literal.lower()]
    try:
        return json.loads(literal, strict=False)
    except (ValueError, RecursionError):
        return text


def types_of(schema: Any) -> set[str]:
    """Return the JSON types that a schema takes, also in unions; empty if it does not say, as with a `$ref`."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    types = {kind} if isinstance(kind, str) else set(kind or ())
    branches = [types_of(branch) for branch in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]]
    return types.union(*branches) if all(branches) else set()
