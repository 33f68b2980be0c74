"""A call of an agent and its answer, independent of the wire protocol, and the `Protocol` of a translation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from typing import Protocol as TypingProtocol

from agentrl.types import FinishReason, Message, ToolCall


class RequestError(Exception):
    """A request that is refused with status 400; the text names the field and the way out."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """Take the text, and the field at fault as the protocol names it."""
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One call of an agent, as chat templates expect it.

    Example: `AgentCall(messages=[{"role": "user", "content": "What is 431 - 27?"}])`.
    """

    messages: list[Message]
    """The dialogue. Text parts are joined, `arguments` of calls are mappings, and a thought is `reasoning_content`. A system
    text of its own field is the first message; a `tool` message has `is_error` if the protocol says so.
    """
    tools: tuple[dict[str, Any], ...] = ()
    """Tools as `ToolSchema.as_template_dict` writes them."""
    prompt: str | None = None
    """Text to continue, of the plain completions protocol; then there are no messages."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | str = "auto"
    """Also the name of the one tool to call."""
    stream: bool = False
    stream_usage: bool = False
    """OpenAI's `stream_options.include_usage`."""
    model: str = ""
    """Name that the agent gave; repeated in the answer."""
    ignored: tuple[str, ...] = ()
    """Sampling fields that were sent and are not obeyed, since the run sets them (`temperature`, `top_p`, `seed`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """The policy's answer to one call."""

    call_id: str
    """Unique in the run: `7-p3-0.2` for the third call of an episode."""
    model: str
    created_s: int
    """Wall clock."""
    text: str
    """Text without the thought and without the calls."""
    thought: str
    calls: tuple[ToolCall, ...]
    """Calls that could be read; `call_id` is the id under which the agent must answer."""
    finish: FinishReason
    num_prompt_tokens: int
    num_completion_tokens: int


class Protocol(TypingProtocol):
    """Translation of one wire protocol; a module of functions, without state."""

    def read(self, body: Mapping[str, Any]) -> AgentCall:
        """Return the call that a request's JSON describes.

        Raises:
            RequestError: a field is missing, of the wrong type, or asks for what a trained policy cannot give (`n` above 1,
                `response_format`, images).
        """
        ...

    def write(self, reply: AgentReply) -> dict[str, Any]:
        """Return the JSON of the whole answer."""
        ...

    def events(self, reply: AgentReply, call: AgentCall) -> Iterator[str]:
        """Yield the server-sent events of the answer, each with its blank line, the closing one last."""
        ...

    def error(self, status: int, message: str, *, field: str | None = None) -> dict[str, Any]:
        """Return the JSON of an error."""
        ...
