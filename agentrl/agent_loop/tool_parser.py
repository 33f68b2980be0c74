"""Parses Hermes-style tool calls in the policy's text.

    <tool_call>
    {"name": "python_code_with_standard_io", "arguments": {"code": "print(1)", "input": ""}}
    </tool_call>

A call that cannot be parsed is kept with the reason, so that it can be answered; it is never dropped.
"""

import json
import re
from typing import Any

from agentrl.types import ToolCall

_MAX_DEPTH = 64
"""Deepest nesting of a call; records of deeper ones could not be sent between processes, because pickling recurses."""

_THOUGHT_END = "</think>"

_THOUGHT_OR_CALL = re.compile(r"<think>.*?(?:</think>|\Z)|<tool_call>(?P<body>.*?)(?P<end></tool_call>|\Z)", re.DOTALL)
"""The tag that opens first contains the other: a call in a thought is a thought, and code may print `<think>`."""


def parse_tool_calls(text: str, *, id_prefix: str, in_thought: bool = False) -> tuple[ToolCall, ...]:
    """Return the calls in `text`, in order; ids are `{id_prefix}-0`, `{id_prefix}-1`, ...

    Calls inside a `<think>` block are ignored. With `in_thought` the chat template has opened such a block before the text; if
    the policy never closes it, the text is treated as outside of it.
    """
    start = text.find(_THOUGHT_END) + len(_THOUGHT_END) if in_thought and _THOUGHT_END in text else 0
    calls = [match for match in _THOUGHT_OR_CALL.finditer(text, start) if match["body"] is not None]
    return tuple(
        _parse_call(body=match["body"], closed=bool(match["end"]), call_id=f"{id_prefix}-{index}")
        for index, match in enumerate(calls)
    )


def _parse_call(*, body: str, closed: bool, call_id: str) -> ToolCall:
    if not closed:
        return ToolCall(call_id=call_id, name="", parse_error="`<tool_call>` is not closed by `</tool_call>`")
    try:
        # Models write real line breaks into strings of code; they are accepted.
        parsed = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4,300 digits
        return ToolCall(call_id=call_id, name="", parse_error=f"the tool call is not valid JSON: {error}")
    if _is_deep(parsed):
        return ToolCall(
            call_id=call_id, name="", parse_error=f"the tool call is nested deeper than {_MAX_DEPTH} levels"
        )
    return _check_call(parsed, call_id=call_id)


def _is_deep(value: Any, levels: int = _MAX_DEPTH) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(item, levels - 1) for item in inner)


def _check_call(parsed: Any, *, call_id: str) -> ToolCall:
    if not isinstance(parsed, dict):
        return ToolCall(call_id=call_id, name="", parse_error="the tool call is not a JSON object")
    name = parsed.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(call_id=call_id, name="", parse_error='the tool call has no "name"')
    # Llama 3.x templates ask for "parameters"; everyone else says "arguments".
    arguments = parsed.get("arguments", parsed.get("parameters", {}))
    if not isinstance(arguments, dict):
        return ToolCall(call_id=call_id, name=name, parse_error='"arguments" is not a JSON object')
    return ToolCall(call_id=call_id, name=name, arguments=arguments)
