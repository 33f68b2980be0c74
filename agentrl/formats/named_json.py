"""Formats that write the name of a call in its tag, and the arguments as JSON: DeepSeek, Kimi, Mistral and gpt-oss."""

import re

from agentrl.formats.arguments import Parameters
from agentrl.formats.base import CallFormat, MalformedCallError, RawCall, arguments_of, end_of, read_json


class NamedJsonFormat(CallFormat):
    """A tag with the name, a JSON object, and the tag's end; after the last call of a turn an end of the section."""

    def __init__(
        self,
        name: str,
        *,
        opening: str,
        closing: str,
        section_end: str = "",
        thought: tuple[str, str] | None = None,
        empty_content: str | None = "",
    ) -> None:
        """Take the patterns; `opening` has a group `name`. The texts `closing` and `section_end` may be absent."""
        self.name = name
        self.opening = re.compile(opening)
        self.thought = thought or CallFormat.thought
        self.empty_content = empty_content
        self._closing, self._section_end = closing, section_end

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read one call."""
        name = opening["name"].strip()
        try:
            parsed, end = read_json(text, opening.end())
        except ValueError as error:
            end = end_of(text, self._closing, opening.end()) if self._closing else len(text)
            raise MalformedCallError(f"the arguments are not valid JSON: {error}", end=end, name=name) from None
        for expected in (self._closing, self._section_end):
            if expected and text[end:].lstrip().startswith(expected):
                end = end_of(text, expected, end)
        return [RawCall(name=name, **arguments_of(parsed))], end


DEEPSEEK_V3 = NamedJsonFormat(
    "deepseek_v3",
    opening=r"<｜tool▁call▁begin｜>\w+<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\n",
    closing="```<｜tool▁call▁end｜>",
    section_end="<｜tool▁calls▁end｜>",
    empty_content=None,  # with text the template writes it before the calls, or drops the calls
)
DEEPSEEK_V31 = NamedJsonFormat(
    "deepseek_v3_1",
    opening=r"<｜tool▁call▁begin｜>(?P<name>[^\n<]+)<｜tool▁sep｜>(?=\s*\{)",
    closing="<｜tool▁call▁end｜>",
    section_end="<｜tool▁calls▁end｜>",
    empty_content=None,
)


class KimiFormat(NamedJsonFormat):
    """Kimi's calls, whose names are part of their ids."""

    def call_id(self, name: str, index: int) -> str:
        """Return `functions.NAME:INDEX`."""
        return f"functions.{name}:{index}"


KIMI = KimiFormat(
    "kimi",
    opening=r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
    closing="<|tool_call_end|>",
    section_end="<|tool_calls_section_end|>",
)
MISTRAL = NamedJsonFormat(
    "mistral",
    opening=r"\[TOOL_CALLS\](?P<name>[^\[\]\s{]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\s*\{)",
    closing="",
    thought=("[THINK]", "[/THINK]"),
)
GPT_OSS = NamedJsonFormat(
    "gpt_oss",
    opening=(
        r"(?:<\|channel\|>\w+|<\|start\|>assistant|\A) to=functions\.(?P<name>[\w.-]+)\s*"
        r"(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>"
    ),
    closing="",
    thought=("<|channel|>analysis<|message|>", "<|end|>"),
)
