"""OpenAI's plain completions: `POST /v1/completions`, text without a chat template."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.agent_loop.gateway.protocols import openai_chat
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.gateway.protocols.request_fields import Fields, event
from agentrl.types import FinishReason

_REFUSED: Mapping[str, Sequence[Any]] = {
    "n": [1],
    "best_of": [1],
    "echo": [False],
    "logprobs": [],
    "logit_bias": [{}],
    "suffix": [""],
}

error = openai_chat.error


def read(body: Mapping[str, Any]) -> AgentCall:
    """Return the call that a request's JSON describes; see `Protocol.read`. Without `max_tokens` the run's limit holds."""
    fields = Fields(body)
    fields.refuse(_REFUSED)
    prompts = fields.texts("prompt")
    if len(prompts) != 1:
        raise fields.error("prompt", f"expected one text, got {len(prompts)}")
    return AgentCall(
        messages=[],
        prompt=prompts[0],
        max_tokens=fields.count("max_tokens"),
        stop=fields.texts("stop"),
        stream=fields.flag("stream"),
        stream_usage=fields.object("stream_options").flag("include_usage"),
        model=fields.text("model", ""),
        ignored=fields.present(openai_chat.SAMPLING),
    )


def write(reply: AgentReply) -> dict[str, Any]:
    """Return the JSON of the whole answer."""
    return _chunk(reply, reply.text, _finish(reply)) | {"usage": openai_chat.usage(reply)}


def events(reply: AgentReply, call: AgentCall) -> Iterator[str]:
    """Yield the answer as chunks, `[DONE]` last."""
    yield event(_chunk(reply, reply.text, _finish(reply)))
    if call.stream_usage:
        yield event(_chunk(reply, "", None) | {"choices": [], "usage": openai_chat.usage(reply)})
    yield "data: [DONE]\n\n"


def _chunk(reply: AgentReply, text: str, finish: str | None) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply.call_id}",
        "object": "text_completion",
        "created": reply.created_s,
        "model": reply.model,
        "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": None}],
    }


def _finish(reply: AgentReply) -> str:
    return "stop" if reply.finish is FinishReason.STOP else "length"
