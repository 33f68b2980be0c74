"""Gemma 4's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`."""

import re
from typing import Any

from agentrl.formats.arguments import Parameters
from agentrl.formats.base import CallFormat, MalformedCallError, RawCall, end_of

_QUOTE = '<|"|>'
_KEY = re.compile(r"(?:<\|\"\|>(?P<quoted>.*?)<\|\"\|>|(?P<bare>[^\s:,{}\[\]]+)):", re.DOTALL)
_SCALAR = re.compile(r"[^,{}\[\]<]+")
_LITERALS = {"true": True, "false": False, "null": None, "None": None}
_MAX_DEPTH = 100


class GemmaFormat(CallFormat):
    """The format of Gemma 4, in which keys are bare and text stands between quote tokens."""

    name = "gemma"
    opening = re.compile(r"<\|tool_call>call:(?P<name>[\w.-]+)(?=\{)")
    thought = ("<|channel>", "<channel|>")
    _closing = "<tool_call|>"

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read one call."""
        try:
            arguments, end = _read_value(text, opening.end(), 0)
        except ValueError as error:
            end = end_of(text, self._closing, opening.end())
            raise MalformedCallError(f"the arguments cannot be read: {error}", end=end, name=opening["name"]) from None
        if not text.startswith(self._closing, end):
            raise MalformedCallError(
                "`<|tool_call>` is not closed by `<tool_call|>`", end=len(text), name=opening["name"]
            )
        return [RawCall(name=opening["name"], arguments=arguments)], end + len(self._closing)


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("they are nested too deeply")
    if text.startswith("{", at):
        return _read_object(text, at + 1, depth)
    if text.startswith("[", at):
        return _read_list(text, at + 1, depth)
    if text.startswith(_QUOTE, at):
        end = text.find(_QUOTE, at + len(_QUOTE))
        if end < 0:
            raise ValueError("a text is not closed")
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        raise ValueError(f"no value at {text[at : at + 20]!r}")
    return _scalar(scalar[0].strip()), scalar.end()


def _read_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    read: dict[str, Any] = {}
    while not text.startswith("}", at):
        key = _KEY.match(text, at)
        if key is None:
            raise ValueError(f"no key at {text[at : at + 20]!r}")
        value, at = _read_value(text, key.end(), depth + 1)
        read[key["bare"] if key["quoted"] is None else key["quoted"]] = value
        at = _after_comma(text, at, "}")
    return read, at + 1


def _read_list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    read: list[Any] = []
    while not text.startswith("]", at):
        value, at = _read_value(text, at, depth + 1)
        read.append(value)
        at = _after_comma(text, at, "]")
    return read, at + 1


def _after_comma(text: str, at: int, closing: str) -> int:
    if text.startswith(",", at):
        return at + 1
    if not text.startswith(closing, at):
        raise ValueError(f"no `,` or `{closing}` at {text[at : at + 20]!r}")
    return at


def _scalar(text: str) -> Any:
    if text in _LITERALS:
        return _LITERALS[text]
    try:
        return int(text)
    except ValueError:
        return float(text)
