"""Calls as plain tags with the name of a tool: `<search>capital of France</search>`, as in Search-R1 (arXiv:2503.09516)."""

import re
from collections.abc import Mapping
from typing import Any

from agentrl.formats.arguments import Parameters, types_of, value_of
from agentrl.formats.base import CallFormat, RawCall

_TEXT = 'a "b" \n c <d> é'
_PROBES = {"integer": 3, "number": 3, "boolean": True, "array": [1, "x"], "object": {"list": [1, "x"]}}


class ActionsFormat(CallFormat):
    """The text between a tool's tags is its first argument. Generation stops at the closing tag, and the result follows."""

    name = "actions"
    opening = re.compile(r"<(?P<name>[A-Za-z_][\w.-]*)>")

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read one action; tags with another name than a tool's are text."""
        name = opening["name"]
        if name not in parameters:
            return [], opening.end()
        end = text.find(f"</{name}>", opening.end())
        if end < 0:
            return [], opening.end()  # a tag that is talked about: its turn did not stop at a closing tag
        key, schema = next(iter(parameters[name].items()), (None, None))
        value = text[opening.end() : end].strip()
        arguments = {} if key is None else {key: value_of(value, schema)}
        return [RawCall(name=name, arguments=arguments)], end + len(f"</{name}>")

    def stop_strings(self, parameters: Parameters) -> tuple[str, ...]:
        """Return the closing tags."""
        return tuple(f"</{name}>" for name in parameters)

    def probe_arguments(self, schemas: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for the first parameter."""
        first = list(schemas)[:1]
        return {
            key: next((_PROBES[kind] for kind in types_of(schemas[key]) if kind in _PROBES), _TEXT) for key in first
        }
