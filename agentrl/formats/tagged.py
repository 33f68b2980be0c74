"""Formats that write each argument between tags, without JSON around: Qwen3-Coder (also Qwen3.5, Nemotron 3), GLM, MiniMax."""

import re

from agentrl.formats.arguments import Parameters, value_of
from agentrl.formats.base import CallFormat, MalformedCallError, RawCall, end_of


class TaggedFormat(CallFormat):
    """A tag with the name, tags for each argument, and the tag's end.

    An argument ends at a closing tag that another argument or the end of the call follows: code may contain such a tag.
    """

    def __init__(
        self, name: str, *, opening: str, argument: str, closing: str, last: str, section_end: str = ""
    ) -> None:
        """Take the patterns.

        Args:
            name: in `model.tool_format`.
            opening: has a group `name`.
            argument: has the groups `key` and `value`; matches at the end of the opening or of another argument.
            closing: end of a call.
            last: text of the end of a call, from which the scan goes on after a malformed one.
            section_end: may follow the last call.
        """
        self.name = name
        self.opening = re.compile(opening)
        self._argument = re.compile(argument, re.DOTALL)
        self._closing, self._last, self._section_end = re.compile(closing), last, re.compile(section_end)

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read one call."""
        name, end = opening["name"].strip(), opening.end()
        schemas = parameters.get(name, {})
        arguments: dict[str, object] = {}
        while argument := self._argument.match(text, end):
            arguments[argument["key"]] = value_of(argument["value"], schemas.get(argument["key"]))
            end = argument.end()
        closing = self._closing.match(text, end)
        if closing is None:
            seen = text[end : end + 40].strip()
            reason = (
                f"the tool call is not closed by `{self._last}`"
                if not seen
                else f"the tool call breaks off at {seen!r}"
            )
            raise MalformedCallError(reason, end=end_of(text, self._last, end), name=name)
        if not name:
            raise MalformedCallError("the tool call has no name", end=closing.end())
        section_end = self._section_end.match(text, closing.end())
        return [RawCall(name=name, arguments=arguments)], section_end.end() if section_end else closing.end()


QWEN_XML = TaggedFormat(
    "qwen_xml",
    opening=r"(?:<tool_call>\s*)?<function=(?P<name>[^>\n]*)>",
    argument=(r"\s*<parameter=(?P<key>[^>\n]*)>\n?(?P<value>.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))"),
    closing=r"\s*</function>(?:\s*</tool_call>)?",
    last="</function>",
)
GLM = TaggedFormat(
    "glm",
    opening=r"<tool_call>(?P<name>[^\n<{]*)",
    argument=(
        r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>))"
    ),
    closing=r"\s*</tool_call>",
    last="</tool_call>",
)
MINIMAX = TaggedFormat(
    "minimax",
    opening=r"<invoke name=\"(?P<name>[^\"\n]*)\">",
    argument=r"\s*<parameter name=\"(?P<key>[^\"\n]*)\">(?P<value>.*?)</parameter>(?=\s*(?:<parameter name=|</invoke>))",
    closing=r"\s*</invoke>",
    last="</invoke>",
    section_end=r"\s*</minimax:tool_call>",
)
