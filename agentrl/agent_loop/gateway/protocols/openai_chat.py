"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.gateway.protocols.request_fields import (
    Fields,
    call_text,
    event,
    function_tools,
    require_tool,
    tool_call,
    with_result_names,
)
from agentrl.types import FinishReason, Message

REFUSED: Mapping[str, Sequence[Any]] = {
    "n": [1],
    "response_format": [{"type": "text"}],
    "logit_bias": [{}],
    "logprobs": [False],
    "modalities": [["text"]],
    "audio": [],
    "functions": [[]],
    "function_call": [],
    "web_search_options": [],
    "structured_outputs": [{}],
    "guided_json": [],
    "guided_regex": [],
    "guided_choice": [],
    "guided_grammar": [],
    "prompt_logprobs": [],
    "continue_final_message": [False],
}
"""Fields that are refused, those of vLLM among them, with the values that ask for nothing."""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "reasoning_effort",
    "verbosity",
    "chat_template_kwargs",
    "parallel_tool_calls",
)
"""Fields that are counted and not obeyed."""

_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_TEXT = ("text", "refusal")


def read(body: Mapping[str, Any]) -> AgentCall:
    """Return the call that a request's JSON describes; see `Protocol.read`."""
    fields = Fields(body)
    fields.refuse(REFUSED)
    messages = [_message(message) for message in fields.objects("messages")]
    if not messages:
        raise fields.error("messages", "is required, with at least one message")
    tools, left_out = function_tools(fields, lambda tool: tool.object("function").tool("parameters"))
    return AgentCall(
        messages=with_result_names(messages),
        tools=tools,
        max_tokens=fields.count("max_completion_tokens") or fields.count("max_tokens"),
        stop=fields.texts("stop"),
        tool_choice=tool_choice(fields, tools),
        stream=fields.flag("stream"),
        stream_usage=fields.object("stream_options").flag("include_usage"),
        model=fields.text("model", ""),
        ignored=(*fields.present(SAMPLING), *left_out),
    )


def write(reply: AgentReply) -> dict[str, Any]:
    """Return the JSON of the whole answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if reply.calls else ""),
        "refusal": None,
    }
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return _head(reply, "chat.completion") | {"choices": [choice], "usage": usage(reply)}


def events(reply: AgentReply, call: AgentCall) -> Iterator[str]:
    """Yield the answer as chunks, `[DONE]` last."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply.thought:
        deltas.append({"reasoning_content": reply.thought})
    if reply.text:
        deltas.append({"content": reply.text})
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(_calls(reply))]
    head = _head(reply, "chat.completion.chunk")
    for delta in deltas:
        yield event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]})
    if call.stream_usage:
        yield event(head | {"choices": [], "usage": usage(reply)})
    yield "data: [DONE]\n\n"


def error(status: int, message: str, *, field: str | None = None) -> dict[str, Any]:
    """Return the JSON of an error."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": None}}


def usage(reply: AgentReply) -> dict[str, Any]:
    """Return the token counts of an answer, also those of plain completions."""
    prompt, completion = reply.num_prompt_tokens, reply.num_completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def tool_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the choice as `AgentCall` has it; the responses API names a tool without `function`."""
    choice = fields.get("tool_choice") or "auto"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise fields.error("tool_choice", f"`{choice}` is none of auto, none and required")
        return choice
    named = fields.object("tool_choice")
    if (kind := named.text("type")) != "function":
        raise named.error("type", f"`{kind}` is not supported, only `function`")
    name = (named.object("function") if "function" in named else named).text("name")
    return require_tool(name, tools, fields.path("tool_choice"))


def _message(fields: Fields) -> Message:
    role = fields.role("system", "user", "assistant", "tool")
    message: Message = {"role": role, "content": fields.content("content", kinds=_TEXT)}
    if role == "tool":
        return message | {"tool_call_id": fields.text("tool_call_id")}
    if role == "assistant":
        if thought := fields.text("reasoning_content", "") or fields.text("reasoning", ""):
            message["reasoning_content"] = thought
        if calls := [_call(call) for call in fields.objects("tool_calls")]:
            message["tool_calls"] = calls
    return message


def _call(fields: Fields) -> dict[str, Any]:
    function = fields.object("function")
    return tool_call(fields.text("id"), function.text("name"), function.arguments("arguments"))


def _calls(reply: AgentReply) -> list[dict[str, Any]]:
    return [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call_text(call)}}
        for call in reply.calls
    ]


def _finish(reply: AgentReply) -> str:
    if reply.finish is not FinishReason.STOP:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _head(reply: AgentReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.call_id}", "object": kind, "created": reply.created_s, "model": reply.model}
