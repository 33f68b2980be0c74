"""Check of a chat template before use: it must show the tools to the policy, and write calls in a format that is read.

A template that fails here would not fail in a run: the policy would never see its tools, or its calls would be treated as
answers.
"""

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from agentrl.agent_loop.chat_template import ChatTemplate
from agentrl.errors import ConfigError
from agentrl.formats.arguments import parameters_of
from agentrl.formats.base import CallFormat, read_calls
from agentrl.formats.registry import FORMATS, format_named
from agentrl.types import Message, ToolCall

_QUESTION = "probe-question"
_SHOWN_CHARACTERS = 160
_OPEN_TAG = re.compile(r"[<\[][^>\]]*\Z")
"""Begin of a tag, as `<t` of `<think>` and `<tool_call>`."""


def find_format(template: ChatTemplate, name: str) -> CallFormat:
    """Return the format in which a template writes calls: the one called `name`, or with `auto` the only one that reads them.

    Raises:
        ConfigError: the template hides the run's tools, drops calls, or writes them in a format that is not read.
    """
    _refuse_hidden_tools(template)
    candidates = list(FORMATS.values()) if name == "auto" else [format_named(name, key="model.tool_format")]
    fitting = [grammar for grammar in candidates if _reads(grammar, template)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ConfigError(
            f"{template.name} writes a tool call that several formats read: "
            f"{', '.join(f'`{grammar.name}`' for grammar in fitting)}. Choose one with `model.tool_format`"
        )
    tool = template.tools[0]["function"]["name"]
    grammar = next(iter(candidates))
    turn = calling_turn(template, grammar, [probe_call(grammar, tool)])
    if tool not in turn:
        raise ConfigError(
            f"{template.name} drops the tool calls of an assistant's turn, so they cannot be trained on. "
            f"{template.way_out}"
        )
    formats = (
        f"none of the formats {', '.join(FORMATS)} reads" if name == "auto" else f"the format `{name}` does not read"
    )
    raise ConfigError(
        f"{template.name} writes a tool call as {turn[:_SHOWN_CHARACTERS]!r}, which {formats}. {template.way_out}, or "
        "`model.tool_format` to a format of your own"
    )


def _reads(grammar: CallFormat, template: ChatTemplate) -> bool:
    tool, parameters = template.tools[0]["function"]["name"], parameters_of(template.tools)
    arguments = grammar.probe_arguments(parameters[tool])
    try:
        turn = calling_turn(template, grammar, [probe_call(grammar, tool, arguments=arguments)])
    except ConfigError:  # of another family, whose templates want another shape of message
        return False
    return calls_equal(read_calls(grammar, turn, parameters, id_prefix="probe").calls, [(tool, arguments)])


def calling_turn(
    template: ChatTemplate, grammar: CallFormat, calls: Sequence[dict[str, Any]], results: Sequence[Message] = ()
) -> str:
    """Return the rendering of an assistant's turn with these calls, and of what follows it.

    Raises:
        ConfigError: the template cannot render it.
    """
    question: list[Message] = [{"role": "user", "content": _QUESTION}]
    prompt, shown = _prompt_with_tools(template)
    what = "a tool's result" if results else "an assistant's tool call"

    def render(calls: Sequence[dict[str, Any]]) -> str:
        turn: Message = {"role": "assistant", "content": grammar.empty_content, "tool_calls": list(calls)}
        return render_probe(template, [*question, turn, *results], what, add_generation_prompt=bool(results))

    try:
        full = render(calls)
    except ConfigError:  # DeepSeek's templates take the arguments as text
        full = render([_with_text_arguments(call) for call in calls])
    if not full.startswith(prompt):
        shown = _without_open_tag(os.path.commonprefix([prompt, full]))  # noqa: RUF071 - of texts, not of paths
    return full[len(shown) :]


@functools.lru_cache(maxsize=128)  # every observation needs it
def _prompt_with_tools(template: ChatTemplate) -> tuple[str, str]:
    """Return the prompt, and the same without a tag that is open at its end."""
    question: list[Message] = [{"role": "user", "content": _QUESTION}]
    prompt = render_probe(template, question, "a prompt with tools", add_generation_prompt=True)
    return prompt, _without_open_tag(prompt)


def _without_open_tag(text: str) -> str:
    return _OPEN_TAG.sub("", text)


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": json.dumps(function["arguments"])}}


def probe_call(
    grammar: CallFormat, name: str, index: int = 0, *, arguments: dict[str, Any] | str | None = None
) -> dict[str, Any]:
    """Return the `index`-th call of a turn in the form that templates take."""
    function = {"name": name, "arguments": arguments or {}}
    return {"type": "function", "id": grammar.call_id(name, index), "function": function}


def render_probe(template: ChatTemplate, messages: list[Message], what: str, **options: bool) -> str:
    """Return a rendering; `what` names the dialogue for the message.

    Raises:
        ConfigError: the template cannot render it.
    """
    try:
        return template.render(messages, **options)
    except Exception as error:
        # A template is a program, and may raise any exception for messages that it does not expect.
        raise ConfigError(
            f"{template.name} cannot render {what}: {type(error).__name__}: {error}. {template.way_out}"
        ) from error


def _refuse_hidden_tools(template: ChatTemplate) -> None:
    question: list[Message] = [{"role": "user", "content": _QUESTION}]
    shown = render_probe(template, question, "a prompt with tools", add_generation_prompt=True)
    plain = render_probe(template, question, "a prompt without tools", add_generation_prompt=True, with_tools=False)
    hidden = [tool["function"]["name"] for tool in template.tools if tool["function"]["name"] not in shown]
    if hidden or shown == plain:
        names = ", ".join(f"`{name}`" for name in hidden or [tool["function"]["name"] for tool in template.tools])
        raise ConfigError(
            f"{template.name} does not show the tools ({names}) to the policy, so it would never call them. "
            f"{template.way_out}"
        )


def calls_equal(calls: Sequence[ToolCall], wanted: Sequence[tuple[str, object]]) -> bool:
    """Return whether the parsed calls equal the wanted ones: name and arguments, in order."""
    return not any(call.parse_error for call in calls) and [(call.name, call.arguments) for call in calls] == list(
        wanted
    )
