"""Text of a sampled turn, as the agent and the reward read it; and what the agent says that its calls returned."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.gateway.rows import Start
from agentrl.engine.stop_strings import end_of_stop
from agentrl.types import Completion, Message, ToolCall, ToolResult, ToolStatus, Turn


def read_reply(
    call: AgentCall, start: Start, completion: Completion, *, name: str, stops: Sequence[str]
) -> tuple[AgentReply, Turn]:
    """Return the answer to an agent and the turn for the reward.

    Args:
        call: what the agent asked.
        start: the tokens before the turn.
        completion: the turn.
        name: name of the call, unique in the run; ids of its tool calls follow from it.
        stops: `rollout.stop`.
    """
    tokens = start.tokens
    sampled = tokens.decode(completion.token_ids)
    text = sampled[: end_of_stop(sampled, (*stops, *tokens.stop_strings, *call.stop))]
    shown, thought = text, ""
    for stop in call.stop:
        shown = shown.removesuffix(stop)
    calls: tuple[ToolCall, ...] = ()
    if call.prompt is None:
        thought, end = tokens.split_thought(shown)
        if call.tool_choice != "none":
            found = tokens.read_calls(shown, id_prefix="")
            calls = tuple(replace(item, call_id=_call_id(name, index)) for index, item in enumerate(found.calls))
            if any(not item.parse_error for item in calls):  # a call that cannot be read stays text
                shown = shown[: found.begin] + shown[found.end :]
        shown = shown[end:].strip()
    reply = AgentReply(
        call_id=name,
        model=call.model or "policy",
        created_s=int(time.time()),
        text=shown,
        thought=thought,
        calls=tuple(item for item in calls if not item.parse_error),
        finish=completion.finish_reason,
        num_prompt_tokens=len(start.token_ids),
        num_completion_tokens=len(completion.token_ids),
    )
    return reply, Turn(text=text, calls=calls)


def results_of(calls: Sequence[ToolCall], messages: Sequence[Message]) -> tuple[ToolResult, ...]:
    """Return the results of a turn's calls as the agent reports them in its next messages."""
    answers = [message for message in messages if message["role"] == "tool"]
    text = (
        "" if answers else "\n".join(str(message.get("content")) for message in messages if message["role"] == "user")
    )
    by_id = {message.get("tool_call_id"): message for message in answers}
    if not any(call.call_id in by_id for call in calls):  # the agent gave the calls ids of its own
        readable = [call.call_id for call in calls if not call.parse_error]
        by_id = dict(zip(readable, answers, strict=False))
    return tuple(_result(call, by_id.get(call.call_id), text) for call in calls)


def _result(call: ToolCall, message: Message | None, text: str) -> ToolResult:
    if call.parse_error:
        return ToolResult(status=ToolStatus.UNPARSABLE, text=call.parse_error)
    if message is not None:
        status = ToolStatus.ERROR if message.get("is_error") else ToolStatus.OK
        return ToolResult(status=status, text=str(message["content"]))
    if text:  # the agent reports results as text
        return ToolResult(status=ToolStatus.OK, text=text)
    return ToolResult(status=ToolStatus.NO_RESULT, text="")


def _call_id(name: str, index: int) -> str:
    """Return an id of nine letters and digits, the only ones that every template takes."""
    return hashlib.blake2b(f"{name}/{index}".encode(), digest_size=5).hexdigest()[:9]
