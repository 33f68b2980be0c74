"""Translation of pydantic's errors into our messages: full key, value, what it must be, and the nearest known key."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from agentrl.config.schema.fields import leaves, section_of

_MAX_SHOWN = 200
"""Largest number of characters of a value in a message."""
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "finite": "finite",
}
"""Expected kind of value, by the first word of the type of pydantic's error."""
_BOUNDS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_too_short": "at least {min_length} character long",
}
"""Expected range or choice, by the type of pydantic's error."""


def problems_of(error: ValidationError, schema: type[BaseModel], *, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the full key and the message of each problem.

    Args:
        error: error of `schema.model_validate`.
        schema: class that was validated.
        prefix: prefix of each key, such as `tools[0].config.`.
    """
    for item in error.errors(include_url=False):
        parts = [part for part in item["loc"] if part != "[key]"]
        key = prefix + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
        yield key, _describe(item, key, schema, parts)


def _describe(item: Any, key: str, schema: type[BaseModel], parts: Sequence[Any]) -> str:
    kind, value = str(item["type"]), item["input"]
    if kind == "extra_forbidden":
        return f"unknown key `{key}`. {_suggestion(schema, parts)}"
    if kind == "missing":
        return f"`{key}` is missing"
    shown = "null" if value is None else repr(value)[:_MAX_SHOWN]
    if _is_secret(schema, parts):
        shown = f"of type `{type(value).__name__}`"
    if kind == "value_error":
        return f"`{key}` {item['ctx']['error']}"
    if kind in _BOUNDS:
        return f"`{key}` is {shown}, and must be {_BOUNDS[kind].format(**item['ctx'])}"
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is None:
        reason = str(item["msg"])
        return f"`{key}` is {shown}: {reason[:1].lower()}{reason[1:]}"
    return f"`{key}` is {shown}, and must be {expected}{_example(kind, value, schema, parts)}"


def _example(kind: str, value: Any, schema: type[BaseModel], parts: Sequence[Any]) -> str:
    if kind == "list_type":
        return f", such as [{value if isinstance(value, str | int | float) else 'a, b'}]"
    if kind == "dict_type":
        return ", such as {key: ...}"
    if kind.startswith("model"):
        return f", such as {{{next(iter(_section_at(schema, parts).model_fields))}: ...}}"
    return ""


def _suggestion(schema: type[BaseModel], parts: Sequence[Any]) -> str:
    """Return the known key that an unknown one was probably meant to be."""
    name = str(parts[-1])
    elsewhere = [key for key, _ in leaves(schema) if key.endswith(f".{name}")]
    known = list(_section_at(schema, parts[:-1]).model_fields)
    near = elsewhere if len(elsewhere) == 1 else get_close_matches(name, known, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Known keys: {', '.join(f'`{key}`' for key in known)}"


def _is_secret(schema: type[BaseModel], parts: Sequence[Any]) -> bool:
    """Return whether the key belongs to a field that is declared with `repr=False`."""
    for index, part in enumerate(parts):
        field = _section_at(schema, parts[:index]).model_fields.get(str(part))
        if field is not None and not field.repr:
            return True
    return False


def _section_at(schema: type[BaseModel], parts: Sequence[Any]) -> type[BaseModel]:
    for part in parts:
        if field := schema.model_fields.get(str(part)):  # others are indices, and names in a dict
            schema = section_of(field.annotation) or schema
    return schema
