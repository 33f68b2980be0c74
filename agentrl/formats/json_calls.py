"""Formats that write a call as one JSON object with its name: Hermes (also Qwen2.5, Qwen3), Llama 3 and older Mistral."""

import re

from agentrl.formats.arguments import Parameters
from agentrl.formats.base import CallFormat, MalformedCallError, RawCall, call_of, end_of, read_json


class HermesFormat(CallFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    The JSON may contain the closing tag, as in a program that prints it. A tag in prose, with another one before the next
    closing tag, is no call.
    """

    name = "hermes"
    opening = re.compile(r"<tool_call>")
    _object = re.compile(r"\s*\{")
    _closing = "</tool_call>"

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read one call."""
        start = opening.end()
        try:
            parsed, end = read_json(text, start)
        except ValueError as error:
            return self._not_json(text, start, error)
        closing = text.find(self._closing, end)
        if closing < 0:
            raise MalformedCallError("`<tool_call>` is not closed by `</tool_call>`", end=len(text))
        if rest := text[end:closing].strip():
            raise MalformedCallError(
                f"the tool call is not valid JSON: {rest[:20]!r} follows the object", end=closing + len(self._closing)
            )
        return [call_of(parsed)], closing + len(self._closing)

    def _not_json(self, text: str, start: int, error: ValueError) -> tuple[list[RawCall], int]:
        another = self.opening.search(text, start)
        closing = text.find(self._closing, start, another.start() if another else len(text))
        if another is not None and closing < 0 and not self._object.match(text, start):
            return [], another.start()
        end = end_of(text, self._closing, start)
        if not text.startswith(self._closing, end - len(self._closing)):
            raise MalformedCallError("`<tool_call>` is not closed by `</tool_call>`", end=end)
        raise MalformedCallError(f"the tool call is not valid JSON: {error}", end=end)


class LlamaFormat(CallFormat):
    """`{"name": ..., "parameters": {...}}` as the whole turn, without tags; calls may follow each other with `;`."""

    name = "llama"
    opening = re.compile(r"\A\s*(?:<\|python_tag\|>)?\s*(?=\{\s*\"(?:name|parameters|arguments|type)\"\s*:)")
    _following = re.compile(r"\s*;?\s*(?=\{)")

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read the calls of the turn."""
        calls: list[RawCall] = []
        end = opening.end()
        while True:
            try:
                parsed, end = read_json(text, end)
            except ValueError as error:
                calls.append(RawCall(error=f"the tool call is not valid JSON: {error}"))
                return calls, len(text)
            calls.append(call_of(parsed))
            following = self._following.match(text, end)
            if following is None:
                return calls, end
            end = following.end()


class MistralListFormat(CallFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, as Mistral's templates before 2025 write it."""

    name = "mistral_list"
    opening = re.compile(r"\[TOOL_CALLS\]\s*(?=\[)")
    thought = ("[THINK]", "[/THINK]")

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read the list of calls."""
        try:
            parsed, end = read_json(text, opening.end())
        except ValueError as error:
            raise MalformedCallError(f"the list of tool calls is not valid JSON: {error}", end=len(text)) from None
        return [call_of(item) for item in parsed], end
