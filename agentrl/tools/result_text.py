"""The text of a tool result, from whatever a function or method of a user's returned."""

import types
from typing import Any, get_args, get_type_hints

from pydantic_core import PydanticSerializationError, to_json


class NoResultError(Exception):
    """A tool returned what is no result; the message says what."""


def result_text(returned: Any, *, none_is_result: bool = False) -> str:
    """Return a `str` as it is, and anything else as JSON.

    Args:
        returned: by user code.
        none_is_result: None means something, and becomes `null`.

    Raises:
        NoResultError: None, as a forgotten `return` gives, or an object of which nothing but its class and address could be
            shown.
    """
    if isinstance(returned, str):
        return str.__str__(returned)  # not one of a class of the user's
    if returned is None and not none_is_result:
        raise NoResultError("the tool returned None, which is no result")
    try:
        return to_json(returned, fallback=_shown).decode()
    except (PydanticSerializationError, ValueError) as error:  # half a surrogate pair, say, or a circle
        words = str(error).removeprefix("Error serializing to JSON: ")
        raise NoResultError(f"the tool returned a `{type(returned).__name__}`, which is no result: {words}") from None


def returns_none(function: Any) -> bool:
    """Return whether a function says by its type hint that None is one of its results."""
    try:
        hint = get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - hints are code of the user's
        return False
    return hint in (types.NoneType, Any) or types.NoneType in get_args(hint)


def _shown(value: Any) -> str:
    text = str(value)
    if f"{id(value):x}" in text:  # `<my_tools.Page object at 0x7f83259cc930>`
        raise TypeError(f"a `{type(value).__name__}` has no text of its own")
    return text
