"""The grammar of one call format, and the scan of a turn's text with it.

A call that cannot be read is kept with the reason, so that it can be answered; it is never dropped. No text raises.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.formats.arguments import Parameters, typed
from agentrl.types import ToolCall

_MAX_DEPTH = 64
"""Deepest nesting of a call; records of deeper ones could not be sent between processes, because pickling recurses."""

_DECODER = json.JSONDecoder(strict=False)
"""Models write real line breaks into strings of code; they are accepted."""

_PROBE_ARGUMENTS = {
    "probe_text": 'a "b" \\n\n\tc <d> é',
    "probe_number": 3,
    "probe_flag": True,
    "probe_nested": {"list": [1, "x"]},
}
"""Values that JSON must escape, or that other formats write differently; no tool has such parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCall:
    """A call as its grammar reads it; `error` is the reason when it cannot be read."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


class MalformedCallError(Exception):
    """A call that breaks off or breaks the grammar; the scan goes on at `end`."""

    def __init__(self, reason: str, *, end: int, name: str = "") -> None:
        """Take the reason, as the policy reads it."""
        super().__init__(reason)
        self.end, self.name = end, name


class CallFormat(ABC):
    """The grammar of one format of tool calls."""

    name: str
    """Name in `model.tool_format`."""
    opening: re.Pattern[str]
    """Text with which a call, or a list of calls, begins."""
    empty_content: str | None = ""
    """Content of an assistant's message that only calls tools."""
    thought: tuple[str, str] = ("<think>", "</think>")
    """Begin and end of a thought; calls in it are not executed."""

    @abstractmethod
    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read what `opening` begins.

        Args:
            text: the turn.
            opening: a match of the pattern `opening` in it.
            parameters: schemas of the tools' parameters, for formats that write values without their type.

        Returns:
            The calls, and the position behind them; no calls if the opening was prose.

        Raises:
            MalformedCallError: a call that cannot be read.
        """

    def stop_strings(self, parameters: Parameters) -> tuple[str, ...]:
        """Return strings at which an engine ends a turn, besides the template's end tokens."""
        return ()

    def call_id(self, name: str, index: int) -> str:
        """Return an id for a call, the `index`-th of its turn; Mistral's templates want nine letters or digits."""
        return f"probe{index % 10_000:04d}"

    def probe_arguments(self, schemas: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with which a template is tried; `schemas` are those of the tool's parameters."""
        return _PROBE_ARGUMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCalls:
    """The calls of a turn, and the part of the text from the first to the last of them (empty without calls)."""

    calls: tuple[ToolCall, ...]
    begin: int
    end: int


def read_calls(
    grammar: CallFormat, text: str, parameters: Parameters, *, id_prefix: str, in_thought: bool = False
) -> ReadCalls:
    """Return the calls in `text`, in order; ids are `{id_prefix}-0`, `{id_prefix}-1`, ...

    Calls inside a thought are ignored; of a thought and a call, the one that opens first contains the other. With `in_thought`
    the chat template has opened a thought before the text; if the policy never closes it, the text is treated as outside of it.
    """
    thought_begin, close = grammar.thought
    position = text.find(close) + len(close) if in_thought and close in text else 0
    raw: list[RawCall] = []
    begin = end = 0
    while (opening := grammar.opening.search(text, position)) is not None:
        thought = text.find(thought_begin, position, opening.start())
        if thought >= 0:
            thought_end = text.find(close, thought)
            position = thought_end + len(close) if thought_end >= 0 else len(text)
            continue
        try:
            calls, position = grammar.read(text, opening, parameters)
        except MalformedCallError as error:
            calls, position = [RawCall(name=error.name, error=str(error))], error.end
        if calls:
            begin, end = begin if raw else opening.start(), position
            raw += calls
    checked = [_checked(call, parameters, call_id=f"{id_prefix}-{index}") for index, call in enumerate(raw)]
    return ReadCalls(calls=tuple(checked), begin=begin, end=end)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and the position behind it.

    Raises:
        ValueError: it is not JSON, has a number of more than 4,300 digits, or is nested too deeply.
    """
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None


def call_of(parsed: Any) -> RawCall:
    """Return the call that a JSON object `{"name": ..., "arguments": {...}}` describes.

    The arguments may also be `null` or absent (none), JSON in a string, or named `parameters` (Llama 3).
    """
    if not isinstance(parsed, dict):
        return RawCall(error="the tool call is not a JSON object")
    name = parsed.get("name")
    if not isinstance(name, str) or not name:
        return RawCall(error='the tool call has no "name"')
    return RawCall(name=name, **arguments_of(parsed.get("arguments", parsed.get("parameters"))))


def arguments_of(given: Any) -> dict[str, Any]:
    """Return `arguments` of a `RawCall`, or its `error`."""
    if isinstance(given, str):
        try:
            given = json.loads(given, strict=False)
        except (ValueError, RecursionError):
            return {"error": '"arguments" is not a JSON object'}
    if given is None:
        return {"arguments": {}}
    return {"arguments": given} if isinstance(given, dict) else {"error": '"arguments" is not a JSON object'}


def end_of(text: str, closing: str, start: int) -> int:
    """Return the position behind the next `closing`, or the end of the text without one."""
    found = text.find(closing, start)
    return found + len(closing) if found >= 0 else len(text)


def _checked(call: RawCall, parameters: Parameters, *, call_id: str) -> ToolCall:
    if not call.error and _is_deep(call.arguments):
        error = f"the tool call is nested deeper than {_MAX_DEPTH} levels"
        return ToolCall(call_id=call_id, name=call.name, parse_error=error)
    arguments = typed(call.arguments, parameters.get(call.name, {}))
    return ToolCall(call_id=call_id, name=call.name, arguments=arguments, parse_error=call.error)


def _is_deep(value: Any, levels: int = _MAX_DEPTH) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(item, levels - 1) for item in inner)
