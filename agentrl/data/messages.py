"""Chat messages of data files, normalised for chat templates and the tool parser.

The input is OpenAI's messages: `content` as text, as null (beside tool calls) or as a list of parts, and `tool_calls` whose
`arguments` are a mapping or JSON text. The output has `content` as text, and every call as
`{"type": "function", "function": {"name": ..., "arguments": {...}}}`.

Null fields are dropped from messages, calls, and any depth of `arguments` given as a mapping: Parquet adds to each struct, as
null, every field that any struct of the column has. A null in `arguments` given as JSON text is kept.
"""

import json
from collections.abc import Mapping
from typing import Any

from agentrl.errors import RowError
from agentrl.types import Message

SYSTEM_ROLES = ("system", "developer")
_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_CALL_KEYS = ("id", "type", "index")
_ARGUMENT_KEYS = ("arguments", "parameters")
"""Keys of a call's arguments: OpenAI's and Llama's."""
_TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(value: Any, *, where: str) -> list[Message]:
    """Return a dialogue; text is one user message, or the JSON of a list of messages.

    `where` is file, row and column, for errors: ``train.jsonl:17: column `prompt` ``.

    Raises:
        RowError: it is no list of messages, or a message is invalid.
    """
    if isinstance(value, str) and value.strip():
        value = messages_in_text(value) or [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise RowError(f"{where} must be text or a list of chat messages, got {value!r:.200}")
    return [_read_message(message, where=f"{where}, message {index}") for index, message in enumerate(value)]


def messages_in_text(text: str) -> list[Any] | None:
    """Return the unchecked messages whose JSON is `text`; None for any other text."""
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        return None
    are_messages = isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value)
    return value if are_messages else None


def _read_message(value: Any, *, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise RowError(f"{where}: must be a mapping with `role` and `content`, got {value!r:.200}")
    message = {name: field for name, field in value.items() if field is not None}
    if message.get("role") not in _ROLES:
        raise RowError(f"{where}: `role` must be one of {', '.join(_ROLES)}, got {value.get('role')!r:.200}")
    if "function_call" in message:
        raise RowError(f"{where}: `function_call` is OpenAI's old form of a call; write it as `tool_calls`")
    calls = message.pop("tool_calls", None) or []
    if not isinstance(calls, list) or (calls and message["role"] != "assistant"):
        raise RowError(f"{where}: `tool_calls` must be a list of calls in an assistant message, got {calls!r:.200}")
    message["content"] = _read_content(message.get("content"), may_be_absent=bool(calls), where=where)
    if calls:
        message["tool_calls"] = [
            _read_call(call, where=f"{where}: `tool_calls[{index}]`") for index, call in enumerate(calls)
        ]
    return message


def _read_content(content: Any, *, may_be_absent: bool, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_absent:
        return ""
    if not isinstance(content, list):
        raise RowError(f"{where}: `content` must be text or a list of text parts, got {content!r:.200}")
    return "\n".join(_read_part(part, where=f"{where}: `content[{index}]`") for index, part in enumerate(content))


def _read_part(part: Any, *, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind in (None, *_TEXT_PARTS) and isinstance(text, str):
        return text
    if kind is not None and kind not in _TEXT_PARTS:
        raise RowError(f"{where} is of type `{kind}`, and the policy reads text only; remove the row")
    raise RowError(f"{where} must be text or a part with `text`, got {part!r:.200}")


def _read_call(value: Any, *, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RowError(f"{where} must be a call with `function`, got {value!r:.200}")
    call = {name: field for name, field in value.items() if field is not None}
    # Data sets of Hermes, Qwen and Llama have no `function` around name and arguments.
    function = call.pop("function", None) or {key: call.pop(key) for key in ("name", *_ARGUMENT_KEYS) if key in call}
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise RowError(f"{where} has no `function.name`, got {value!r:.200}")
    written = next((function[key] for key in _ARGUMENT_KEYS if function.get(key) is not None), None)
    unknown = [key for key in call if key not in _CALL_KEYS]
    unknown += [key for key, field in function.items() if field is not None and key != "name"]
    if written is None and unknown:  # which may hold the arguments
        names = ", ".join(f"`{key}`" for key in unknown)
        raise RowError(f"{where} has no `arguments`, but {names}. Put its arguments beside `name`, as `arguments`")
    return call | {"type": "function", "function": {"name": name, "arguments": _read_arguments(written, where=where)}}


def _read_arguments(value: Any, *, where: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, Mapping):
        return without_nulls(value)
    try:
        arguments = json.loads(value) if isinstance(value, str) else None
    except ValueError as error:
        raise RowError(f"{where}: `arguments` is no JSON: {error}: {value!r:.200}") from error
    if not isinstance(arguments, dict):
        raise RowError(f"{where}: `arguments` must be a mapping, or one as JSON text, got {value!r:.200}")
    return arguments


def without_nulls(value: Any) -> Any:
    """Return `value` without the null fields of its mappings; nulls in lists stay."""
    if isinstance(value, Mapping):
        return {name: without_nulls(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
