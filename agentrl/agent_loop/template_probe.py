"""Check of a chat template before use: it must show the tools to the policy, and write calls that the parser reads.

A template that fails here would not fail in a run: the policy would never see its tools, or its calls would be treated as
answers.
"""

from agentrl.agent_loop.chat_template import ChatTemplate
from agentrl.agent_loop.tool_parser import parse_tool_calls
from agentrl.errors import ConfigError
from agentrl.types import Message, ToolCall

_QUESTION = "probe-question"
_ARGUMENTS = {"text": 'a "b" \\n\n\tc <d> é', "number": 3, "flag": True, "nested": {"list": [1, "x"]}}
"""Values that JSON must escape, or that other formats write differently."""
_SHOWN_CHARACTERS = 160
_FORMAT = '`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`'


def probe_tools(template: ChatTemplate) -> None:
    """Refuse a template that hides the run's tools, or writes calls in a format that the parser does not read.

    Raises:
        ConfigError: the template does one of these.
    """
    _refuse_hidden_tools(template)
    _refuse_unread_calls(template)


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


def probe_call(template: ChatTemplate) -> Message:
    """Return an assistant's turn that calls the first tool."""
    function = {"name": template.tools[0]["function"]["name"], "arguments": _ARGUMENTS}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "probe0000", "function": function}],
    }


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


def _refuse_unread_calls(template: ChatTemplate) -> None:
    name = template.tools[0]["function"]["name"]
    dialogue = [{"role": "user", "content": _QUESTION}, probe_call(template)]
    written = render_probe(template, dialogue, "an assistant's tool call").rpartition(_QUESTION)[2]
    if name not in written:
        raise ConfigError(
            f"{template.name} drops the tool calls of an assistant's turn, so they cannot be trained on. "
            f"{template.way_out}"
        )
    if not calls_equal(parse_tool_calls(written, id_prefix="probe"), [(name, _ARGUMENTS)]):
        raise ConfigError(
            f"{template.name} writes a tool call as {written[:_SHOWN_CHARACTERS]!r}, and only {_FORMAT} is read. "
            f"{template.way_out}"
        )


def calls_equal(calls: tuple[ToolCall, ...], wanted: list[tuple[str, object]]) -> bool:
    """Return whether the parsed calls equal the wanted ones: name and arguments, in order."""
    return [(call.name, call.arguments) for call in calls if not call.parse_error] == wanted and len(calls) == len(
        wanted
    )
