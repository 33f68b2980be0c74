"""OpenAI's responses: `POST /v1/responses`, without state on the server; the input is always the whole dialogue."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_loop.gateway.protocols import openai_chat
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.gateway.protocols.request_fields import (
    Fields,
    call_text,
    event,
    function_tools,
    tool_call,
    with_result_names,
)
from agentrl.types import FinishReason, Message

_REFUSED: Mapping[str, Sequence[Any]] = {
    "previous_response_id": [],
    "conversation": [],
    "prompt": [],
    "background": [False],
    "top_logprobs": [0],
}
_SAMPLING = ("temperature", "top_p", "reasoning", "parallel_tool_calls", "max_tool_calls", "context_management")
_TEXT = ("input_text", "output_text", "text", "refusal")

error = openai_chat.error


def read(body: Mapping[str, Any]) -> AgentCall:
    """Return the call that a request's JSON describes; see `Protocol.read`."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    fields.object("text").refuse({"format": [{"type": "text"}]})
    tools, left_out = function_tools(fields, lambda tool: tool.tool("parameters"))
    return AgentCall(
        messages=with_result_names(_messages(fields)),
        tools=tools,
        max_tokens=fields.count("max_output_tokens"),
        tool_choice=openai_chat.tool_choice(fields, tools),
        stream=fields.flag("stream"),
        model=fields.text("model", ""),
        ignored=(*fields.present(_SAMPLING), *left_out),
    )


def write(reply: AgentReply) -> dict[str, Any]:
    """Return the JSON of the whole answer."""
    is_cut = reply.finish is not FinishReason.STOP
    return _response(reply, "incomplete" if is_cut else "completed") | {
        "output": _items(reply),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "usage": _usage(reply),
    }


def events(reply: AgentReply, call: AgentCall) -> Iterator[str]:
    """Yield the answer as numbered events, `response.completed` or `response.incomplete` last."""
    for number, data in enumerate(_events(reply)):
        yield event(data | {"sequence_number": number}, named=True)


def _events(reply: AgentReply) -> Iterator[dict[str, Any]]:
    begun = _response(reply, "in_progress") | {"output": []}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(_items(reply)):
        place = {"output_index": index, "item_id": item["id"]}
        blank = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": item | blank | {"status": "in_progress"},
        }
        yield from _call_events(item, place) if item["type"] == "function_call" else _part_events(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    answer = write(reply)
    yield {"type": f"response.{answer['status']}", "response": answer}


def _call_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = "response.function_call_arguments"
    yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
    yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]}


def _part_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a message's text, or of a thought."""
    (part,) = item["content"]
    place = {**place, "content_index": 0}
    logprobs = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
    yield {"type": f"response.{part['type']}.delta", **place, "delta": part["text"], **logprobs}
    yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _messages(fields: Fields) -> list[Message]:
    """Return the dialogue; consecutive items of one answer (thought, text, calls) become one assistant message."""
    messages: list[Message] = []
    if instructions := fields.text("instructions", ""):
        messages.append({"role": "system", "content": instructions})
    if isinstance(text := fields.get("input"), str):
        return [*messages, {"role": "user", "content": text}]
    items = [_message(item) for item in fields.objects("input")]
    if not items:
        raise fields.error("input", "is required, with at least one item")
    for message in items:
        if messages and _continues(messages[-1], message):
            calls = (messages[-1].pop("tool_calls", []), message.get("tool_calls", []))
            messages[-1] |= message | {"content": messages[-1]["content"] or message["content"]}
            if any(calls):
                messages[-1]["tool_calls"] = calls[0] + calls[1]
        else:
            messages.append(message)
    return messages


def _continues(last: Message, message: Message) -> bool:
    """Return True if a message belongs to the answer of the last one: thought, then text, then calls."""
    if not last["role"] == message["role"] == "assistant":
        return False
    if message.get("tool_calls"):
        return True
    is_thought = "reasoning_content" in message
    return not is_thought and not last["content"] and not last.get("tool_calls")


def _message(item: Fields) -> Message:
    """Return one item as a message of its own."""
    kind = item.text("type", "message")
    if kind == "message":
        role = item.role("system", "user", "assistant")
        return {"role": role, "content": item.content("content", kinds=_TEXT)}
    if kind == "function_call":
        call = tool_call(item.text("call_id"), item.text("name"), item.arguments("arguments"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        text = item.content("output", kinds=_TEXT)
        return {"role": "tool", "content": text, "tool_call_id": item.text("call_id")}
    if kind == "reasoning":
        thought = item.content("content", kinds=("reasoning_text",)) or item.content("summary", kinds=("summary_text",))
        return {"role": "assistant", "content": "", "reasoning_content": thought}
    raise item.error(
        "type", f"items of type `{kind}` are not supported; send the dialogue as messages and function calls"
    )


def _items(reply: AgentReply) -> list[dict[str, Any]]:
    status = "completed" if reply.finish is FinishReason.STOP else "incomplete"
    items: list[dict[str, Any]] = []
    if reply.thought:
        part = {"type": "reasoning_text", "text": reply.thought}
        items.append({"type": "reasoning", "id": f"rs_{reply.call_id}", "summary": [], "content": [part]})
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{reply.call_id}",
                "role": "assistant",
                "status": status,
                "content": [part],
            }
        )
    return items + [
        {
            "type": "function_call",
            "id": f"fc_{call.call_id}",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call_text(call),
            "status": status,
        }
        for call in reply.calls
    ]


def _response(reply: AgentReply, status: str) -> dict[str, Any]:
    """Return the part of the answer that is known at its start, with the fields that the SDK's model requires."""
    return {
        "id": f"resp_{reply.call_id}",
        "object": "response",
        "created_at": reply.created_s,
        "model": reply.model,
        "status": status,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _usage(reply: AgentReply) -> dict[str, Any]:
    prompt, completion = reply.num_prompt_tokens, reply.num_completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
