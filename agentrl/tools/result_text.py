"""Results of user code: a returned value as text, an exception as a failed call."""

import types
from typing import Any, get_args, get_type_hints

from pydantic_core import PydanticSerializationError, to_json

from agentrl.errors import DataError, RolloutError
from agentrl.types import ToolResult, ToolStatus
from agentrl.user_code import cause_of, raised_by_user, text_of


class NoResultError(Exception):
    """A tool's return value is no result; the message names it."""


def as_result(returned: Any, *, none_is_result: bool = False, reward: float | None = None) -> ToolResult:
    """Return a value returned by user code as the result of the call."""
    try:
        text = result_text(returned, none_is_result=none_is_result)
    except NoResultError as error:
        return ToolResult(status=ToolStatus.NO_RESULT, text=f"failure: {error}", reward=reward)
    return ToolResult(status=ToolStatus.OK, text=text, reward=reward)


def failed_call(error: Exception) -> ToolResult:
    """Return an exception of user code as a failed call that the policy reads.

    Raises:
        RolloutError, DataError, ConnectionError, TimeoutError: `error` is one; it blames the infrastructure or the data.
    """
    if isinstance(error, RolloutError | DataError | ConnectionError | TimeoutError):
        raise error
    raised = raised_by_user(error)
    text = f"failure: {type(raised).__name__}: {text_of(raised)}"
    return ToolResult(status=ToolStatus.ERROR, text=text, cause=cause_of(raised))


def result_text(returned: Any, *, none_is_result: bool = False) -> str:
    """Return a `str` as it is, and anything else as JSON; None is `null` if `none_is_result`.

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
