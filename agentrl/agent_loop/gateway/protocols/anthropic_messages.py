"""Anthropic's messages: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.gateway.protocols.request_fields import (
    Fields,
    event,
    function_tools,
    json_text,
    require_tool,
    tool_call,
    with_result_names,
)
from agentrl.types import FinishReason, Message

_REFUSED: Mapping[str, Sequence[Any]] = {
    "container": [],
    "mcp_servers": [[]],
    "output_format": [],
    "prefill": [],
}
_SAMPLING = ("temperature", "top_p", "top_k", "thinking", "context_management")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read(body: Mapping[str, Any]) -> AgentCall:
    """Return the call that a request's JSON describes; see `Protocol.read`. `count_tokens` sends the same without limits."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    fields.object("output_config").refuse({"format": []})
    messages: list[Message] = []
    if system := fields.content("system", kinds=("text",)):
        messages.append({"role": "system", "content": system})
    for message in fields.objects("messages"):
        messages += _messages(message)
    if not messages or messages[-1]["role"] in ("assistant", "system"):
        raise fields.error("messages", "the last message must be the user's: no answer can be begun for the policy")
    tools, left_out = function_tools(fields, lambda tool: tool.tool("input_schema"), kind="custom", default="custom")
    return AgentCall(
        messages=with_result_names(messages),
        tools=tools,
        max_tokens=fields.count("max_tokens"),
        stop=fields.texts("stop_sequences"),
        tool_choice=_tool_choice(fields, tools),
        stream=fields.flag("stream"),
        model=fields.text("model", ""),
        ignored=(*fields.present(_SAMPLING), *left_out),
    )


def write(reply: AgentReply) -> dict[str, Any]:
    """Return the JSON of the whole answer."""
    return _head(reply, reply.num_completion_tokens) | {"content": _blocks(reply), **_stop(reply)}


def events(reply: AgentReply, call: AgentCall) -> Iterator[str]:
    """Yield the answer as named events, `message_stop` last."""
    for data in _events(reply):
        yield event(data, named=True)


def error(status: int, message: str, *, field: str | None = None) -> dict[str, Any]:
    """Return the JSON of an error; the message names the field."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def token_count(num_tokens: int) -> dict[str, Any]:
    """Return the JSON of an answer of `count_tokens`."""
    return {"input_tokens": num_tokens}


def _events(reply: AgentReply) -> Iterator[dict[str, Any]]:
    yield {
        "type": "message_start",
        "message": _head(reply, 0) | {"content": [], "stop_reason": None, "stop_sequence": None},
    }
    for index, block in enumerate(_blocks(reply)):
        blank, deltas = _deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": block | blank}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _stop(reply), "usage": {"output_tokens": reply.num_completion_tokens}}
    yield {"type": "message_stop"}


def _deltas(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the fields that are empty when a block starts, and the deltas that fill them."""
    if block["type"] == "text":
        return {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        signature = {"type": "signature_delta", "signature": block["signature"]}
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {"thinking": "", "signature": ""}, [thought, signature]
    return {"input": {}}, [{"type": "input_json_delta", "partial_json": json_text(block["input"])}]


def _messages(fields: Fields) -> list[Message]:
    """Return one message; a user's with tool results becomes `tool` messages and the text around them."""
    role = fields.role("user", "assistant", "system")
    if role == "assistant":
        return [_answer(fields)]
    if isinstance(text := fields.get("content"), str):
        return [{"role": role, "content": text}]
    messages: list[Message] = []
    for block in fields.objects("content"):
        if role == "user" and block.text("type") == "tool_result":
            text = block.content("content", kinds=("text",))
            result: Message = {"role": "tool", "content": text, "tool_call_id": block.text("tool_use_id")}
            messages.append(result | ({"is_error": True} if block.flag("is_error") else {}))
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n" + block.part_text(("text",))
        else:
            messages.append({"role": role, "content": block.part_text(("text",))})
    return messages


def _answer(fields: Fields) -> Message:
    if isinstance(text := fields.get("content"), str):
        return {"role": "assistant", "content": text}
    texts, thoughts, calls = [], [], []
    for block in fields.objects("content"):
        if (kind := block.text("type")) == "thinking":
            thoughts.append(block.text("thinking"))
        elif kind == "tool_use":
            calls.append(tool_call(block.text("id"), block.text("name"), block.arguments("input")))
        else:
            texts.append(block.part_text(("text",)))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> str:
    choice = fields.object("tool_choice")
    if (kind := choice.text("type", "auto")) == "tool":
        return require_tool(choice.text("name"), tools, choice.path("name"))
    if kind not in _CHOICES:
        raise choice.error("type", f"`{kind}` is none of auto, any, tool and none")
    return _CHOICES[kind]


def _blocks(reply: AgentReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.thought:
        # SDKs send a thought back only with a signature.
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": reply.call_id})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    return blocks + [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments} for call in reply.calls
    ]


def _stop(reply: AgentReply) -> dict[str, Any]:
    reason = "tool_use" if reply.calls else "end_turn"
    return {"stop_reason": reason if reply.finish is FinishReason.STOP else "max_tokens", "stop_sequence": None}


def _head(reply: AgentReply, num_output_tokens: int) -> dict[str, Any]:
    usage = {"input_tokens": reply.num_prompt_tokens, "output_tokens": num_output_tokens}
    head = {"id": f"msg_{reply.call_id}", "type": "message", "role": "assistant", "model": reply.model}
    return head | {"usage": usage}
