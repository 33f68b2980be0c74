"""Whole dialogues from the rows of public data sets, for supervised training.

A row has its dialogue in one of these forms, tried in this order:

    messages                      OpenAI messages, or ShareGPT turns (`from`, `value`)
    conversations                 likewise
    prompt, completion            each text or a list of messages; `response` is read as `completion`
    instruction, input, output    Alpaca; `input` may be empty or absent

A `data.messages_key` other than `messages` names the only column that is read. Messages may be JSON text. A column `system` is
the system message of a dialogue without one, and `tools` has its tool schemas, as a list or JSON text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.data.messages import SYSTEM_ROLES, messages_in_text, read_messages, without_nulls
from agentrl.data.rows import Row, read_rows
from agentrl.errors import RowError
from agentrl.types import Message

_MESSAGES_KEY = "messages"
_SHAREGPT_KEY = "conversations"
_COMPLETION_KEYS = ("completion", "response")
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_CALL_TURNS = ("function_call", "tool_call")
_RESULT_TAG = "tool_response"
"""Tag around a result in Hermes' data sets; its chat template writes the tag too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One demonstration."""

    where: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    """Its own tool schemas, in the form of chat templates; empty: those of the run."""


def read_dialogues(files: Sequence[Path], *, messages_key: str) -> Iterator[Dialogue]:
    """Yield the dialogues of JSONL and Parquet files, in order; raises as `read_rows` and `read_dialogue` do."""
    for file in files:
        for row in read_rows(file):
            yield read_dialogue(row, messages_key=messages_key)


def read_dialogue(row: Row, *, messages_key: str) -> Dialogue:
    """Return the dialogue of a row; raises RowError if it has no valid one."""
    messages = _read_turns(row, messages_key)
    system = row.values.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] not in SYSTEM_ROLES:
        messages.insert(0, {"role": "system", "content": system})
    if not any(message["role"] == "assistant" for message in messages):
        raise RowError(f"{row.where}: the dialogue has no assistant message, so there is nothing to learn from it")
    return Dialogue(where=row.where, messages=messages, tools=_read_tools(row))


def _read_turns(row: Row, messages_key: str) -> list[Message]:
    values = {name: value for name, value in row.values.items() if value is not None}
    is_named = messages_key != _MESSAGES_KEY  # by the user: no other column replaces it
    for key in (messages_key,) if is_named else (_MESSAGES_KEY, _SHAREGPT_KEY):
        if key in values:
            return _read_list(values[key], where=f"{row.where}: column `{key}`")
    if is_named:
        columns = ", ".join(f"`{name}`" for name in values) or "none"
        raise RowError(
            f"{row.where}: no value in column `{messages_key}` (columns: {columns}). Name the column of the messages in "
            "`data.messages_key`"
        )
    for key in _COMPLETION_KEYS:
        if "prompt" in values and key in values:
            prompt = read_messages(values["prompt"], where=f"{row.where}: column `prompt`")
            return prompt + _read_completion(values[key], where=f"{row.where}: column `{key}`")
    if "instruction" in values and "output" in values:
        parts = [values["instruction"], values.get("input", "")]
        question = "\n\n".join(part for part in parts if isinstance(part, str) and part.strip())
        prompt = read_messages(question, where=f"{row.where}: column `instruction`")
        return prompt + _read_completion(values["output"], where=f"{row.where}: column `output`")
    raise RowError(
        f"{row.where}: no dialogue in columns {', '.join(f'`{name}`' for name in values) or '(none)'}. Name the column of the "
        "messages in `data.messages_key`, or have `prompt` and `completion`"
    )


def _read_list(value: Any, *, where: str) -> list[Message]:
    if isinstance(value, str):
        value = _decoded(value, where=where)
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and value[0].get("from") is not None:
        value = [_from_sharegpt(turn, where=f"{where}, turn {index}") for index, turn in enumerate(value)]
    if not isinstance(value, list):
        raise RowError(f"{where} must be a list of messages, got {value!r:.200}")
    return read_messages(value, where=where)


def _read_completion(value: Any, *, where: str) -> list[Message]:
    if isinstance(value, str) and value.strip():
        value = messages_in_text(value) or [{"role": "assistant", "content": value}]
    if not isinstance(value, list):
        raise RowError(f"{where} must be text or a list of messages, got {value!r:.200}")
    return read_messages(value, where=where)


def _from_sharegpt(turn: Any, *, where: str) -> dict[str, Any]:
    """Return a turn of ShareGPT as an unchecked OpenAI message."""
    sender, value = (turn.get("from"), turn.get("value")) if isinstance(turn, Mapping) else (None, None)
    if sender not in _SHAREGPT_ROLES or not isinstance(value, str):
        raise RowError(f"{where} must have `value` and `from` ({', '.join(_SHAREGPT_ROLES)}), got {turn!r:.200}")
    message = {"role": _SHAREGPT_ROLES[sender], "weight": turn.get("weight")}
    if sender in _CALL_TURNS:
        calls = _decoded(value, where=where)
        return message | {"tool_calls": calls if isinstance(calls, list) else [calls]}
    return message | {"content": _without_result_tag(value) if message["role"] == "tool" else value}


def _without_result_tag(text: str) -> str:
    inner = text.strip()
    opening, closing = f"<{_RESULT_TAG}>", f"</{_RESULT_TAG}>"
    if inner.startswith(opening) and inner.endswith(closing) and inner.count(opening) == 1:
        return inner.removeprefix(opening).removesuffix(closing).strip("\n")
    return text


def _read_tools(row: Row) -> list[dict[str, Any]]:
    """Return the tools of a row; bare functions without `type` are accepted."""
    value, where = row.values.get("tools"), f"{row.where}: column `tools`"
    if isinstance(value, str):
        value = _decoded(value, where=where) if value.strip() else None
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowError(f"{where} must be a list of tool schemas or its JSON text, got {value!r:.200}")
    return [_read_tool(tool, where=f"{where}, tool {index}") for index, tool in enumerate(value)]


def _read_tool(value: Any, *, where: str) -> dict[str, Any]:
    schema = without_nulls(_decoded(value, where=where) if isinstance(value, str) else value)
    function = schema.get("function", schema) if isinstance(schema, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowError(f"{where} must be a schema with `function.name`, got {value!r:.200}")
    return {"type": "function", "function": dict(function)}


def _decoded(text: str, *, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowError(f"{where} is no JSON: {error}: {text!r:.200}") from error
