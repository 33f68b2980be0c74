"""Checked fields of a request's JSON; a wrong one is refused with its path, such as `messages[2].content`."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_loop.gateway.protocols.base import RequestError
from agentrl.types import Message, ToolCall

_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_NO_PARAMETERS = {"type": "object", "properties": {}}


class Fields:
    """An object of a request; `null` means absent, as in every SDK."""

    def __init__(self, value: Any, path: str = "") -> None:
        """Take the JSON value found at `path`; raises `RequestError` if it is no object."""
        if type(value) is not dict and not isinstance(value, Mapping):  # the first is much faster
            raise RequestError(f"`{path or 'body'}`: expected an object, got {_kind(value)}", field=path)
        self._values: Mapping[str, Any] = value
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        """Return the value as it was sent."""
        return self._values.get(name)

    def path(self, name: str) -> str:
        """Return the path of a field of this object."""
        return f"{self._path}.{name}" if self._path else name

    def error(self, name: str, message: str) -> RequestError:
        """Return the refusal of a field."""
        return RequestError(f"`{self.path(name)}`: {message}", field=self.path(name))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; without a `default` it is required."""
        value = self._typed(name, str, "a string")
        if value is None:
            if default is None:
                raise self.error(name, "is required")
            return default
        return str(value)

    def role(self, *known: str) -> str:
        """Return the role of a message; OpenAI's `developer` is `system`."""
        role = self.text("role").replace("developer", "system")
        if role not in known:
            raise self.error("role", f"`{role}` is none of {', '.join(known)}")
        return role

    def count(self, name: str) -> int | None:
        """Return a whole number of at least 1."""
        value = self._typed(name, int, "a whole number")
        if value is not None and (value < 1 or isinstance(value, bool)):
            raise self.error(name, f"expected a whole number of at least 1, got {value}")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false; absent: false."""
        return bool(self._typed(name, bool, "true or false"))

    def object(self, name: str) -> "Fields":
        """Return a field that is an object; absent: an empty one."""
        return Fields({} if self.get(name) is None else self.get(name), self.path(name))

    def objects(self, name: str) -> Iterator["Fields"]:
        """Yield the objects of a list; absent: none."""
        path = self.path(name)
        for index, value in enumerate(self._typed(name, list, "a list") or ()):
            yield Fields(value, f"{path}[{index}]")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings, which may also be one string; absent: none."""
        value = self.get(name)
        values = [value] if isinstance(value, str) else self._typed(name, list, "a string or a list of strings") or ()
        if not all(isinstance(text, str) for text in values):
            raise self.error(name, "expected a string or a list of strings")
        return tuple(text for text in values if text)

    def content(self, name: str, *, kinds: Iterable[str]) -> str:
        """Return a message's text, a string or a list of parts of these `kinds`; parts are joined by line breaks."""
        if (value := self.get(name)) is None or isinstance(value, str):
            return value or ""
        return "\n".join(part.part_text(kinds) for part in self.objects(name))

    def part_text(self, kinds: Iterable[str]) -> str:
        """Return the text of one content part."""
        if (kind := self.text("type")) not in kinds:
            raise self.error("type", f"content of type `{kind}` is not supported: the policy reads text only")
        return self.text("text")

    def refuse(self, harmless: Mapping[str, Sequence[Any]]) -> None:
        """Refuse fields that a trained policy cannot obey, keyed by name with the values that ask for nothing."""
        for name, value in self._values.items():
            if name in harmless and value is not None and value not in harmless[name]:
                raise self.error(name, f"{json.dumps(value)[:80]} is not supported by a policy in training; remove it")

    def present(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of `names` that were sent."""
        return tuple(name for name, value in self._values.items() if name in names and value is not None)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return a call's arguments, sent as an object or as the JSON text of one."""
        value = self.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value or "{}")
            except (ValueError, RecursionError):
                raise self.error(name, "expected the JSON text of an object") from None
        if not isinstance(value, dict):
            raise self.error(name, f"expected the JSON text of an object, got {_kind(value)}")
        return value

    def tool(self, parameters: str) -> dict[str, Any]:
        """Return this description of a function as chat templates take it; `parameters` names the field of its schema."""
        function = {
            "name": self.text("name"),
            "description": self.text("description", ""),
            "parameters": dict(self.object(parameters)._values) or _NO_PARAMETERS,
        }
        return {"type": "function", "function": function}

    def _typed(self, name: str, kind: type, words: str) -> Any:
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.error(name, f"expected {words}, got {_kind(value)}")
        return value


def tool_call(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of an assistant's message as chat templates take it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def function_tools(
    fields: Fields, read: Callable[[Fields], dict[str, Any]], *, kind: str = "function", default: str | None = None
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Return the functions among a request's tools, and the other tools' kinds as ignored fields.

    The policy is not shown tools that the model's server runs, nor those without a schema; Codex sends such tools always.
    `kind` is the type of a function, `default` the type of a tool without.
    """
    tools = [(tool.text("type", default), tool) for tool in fields.objects("tools")]
    ignored = dict.fromkeys(f"tools.{own}" for own, _ in tools if own != kind)
    return tuple(read(tool) for own, tool in tools if own == kind), tuple(ignored)


def with_result_names(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, with the called tool's name in each `tool` message, which some templates read."""
    names: dict[str, str] = {}
    named = []
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        name = names.get(message.get("tool_call_id", ""))
        named.append(message | {"name": name} if message["role"] == "tool" and name else message)
    return named


def require_tool(name: str, tools: Sequence[Mapping[str, Any]], field: str) -> str:
    """Return `name` if it is a tool's."""
    if name not in (known := [tool["function"]["name"] for tool in tools]):
        raise RequestError(f"`{field}`: no tool is named `{name}`; the tools are {known}", field=field)
    return name


def json_text(value: Mapping[str, Any]) -> str:
    """Return compact JSON, as APIs write the arguments of calls."""
    return _COMPACT.encode(value)


def call_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text."""
    return json_text(call.arguments)


def event(data: Mapping[str, Any], *, named: bool = False) -> str:
    """Return a server-sent event; `named` repeats the data's `type` as the event's name."""
    name = f"event: {data['type']}\n" if named else ""
    return f"{name}data: {json_text(data)}\n\n"


def _kind(value: Any) -> str:
    kinds = {
        str: "a string",
        bool: "a boolean",
        list: "a list",
        type(None): "nothing",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "an object")
