"""Text of a tool result, from the return value of user code."""

import types
from typing import Any, get_args, get_type_hints

from pydantic_core import PydanticSerializationError, to_json


class NoResultError(Exception):
    """A tool's return value is no result; the message names it."""


def result_text(returned: Any, *, none_is_result: bool = False) -> str:
    """Return a `str` as it is, and anything else as JSON.

    Args:
        returned: value returned by user code.
        none_is_result: None is a valid result, and becomes `null`.

    Raises:
        NoResultError: the value is None, as from a forgotten `return`, or an object without a text of its own.
    """
    if isinstance(returned, str):
        return str.__str__(returned)  # a plain `str`, also for a subclass
    if returned is None and not none_is_result:
        raise NoResultError("the tool returned None, which is no result")
    try:
        return to_json(returned, fallback=_shown).decode()
    except (PydanticSerializationError, ValueError) as error:  # such as half a surrogate pair, or a cycle
        words = str(error).removeprefix("Error serializing to JSON: ")
        raise NoResultError(f"the tool returned a `{type(returned).__name__}`, which is no result: {words}") from None


def returns_none(function: Any) -> bool:
    """Return whether a function's type hint allows None as a result."""
    try:
        hint = get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - hints are user code
        return False
    return hint in (types.NoneType, Any) or types.NoneType in get_args(hint)


def _shown(value: Any) -> str:
    text = str(value)
    if f"{id(value):x}" in text:  # `<my_tools.Page object at 0x7f83259cc930>`
        raise TypeError(f"a `{type(value).__name__}` has no text of its own")
    return text
