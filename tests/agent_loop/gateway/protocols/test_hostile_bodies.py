"""Bodies that no SDK sends: each is read or refused, and nothing else is raised."""

import copy
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from agentrl.agent_loop.gateway.protocols import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)
from agentrl.agent_loop.gateway.protocols.base import AgentCall, RequestError
from tests.agent_loop.gateway.protocols import test_anthropic_messages, test_openai_chat, test_openai_responses

VALUES: list[Any] = [
    None,
    True,
    -1,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    [None],
    [[]],
    {},
    {"type": "text"},
    {"type": "x", "id": 1},
]
CHAT = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is 431 - 27?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Subtract.",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "calc", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "404", "tool_call_id": "c"},
    ],
    "tools": [test_openai_chat.TOOL],
    "tool_choice": {"type": "function", "function": {"name": "calc"}},
    "max_tokens": 5,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
}
BODIES: dict[ModuleType, dict[str, Any]] = {
    openai_chat: CHAT,
    openai_responses: test_openai_responses.SECOND_TURN | {"tool_choice": {"type": "function", "name": "calc"}},
    anthropic_messages: test_anthropic_messages.SECOND_TURN | {"tool_choice": {"type": "tool", "name": "calc"}},
    openai_completions: {"prompt": "2 +", "max_tokens": 5, "stop": "x", "stream": True, "stream_options": {}},
}


def variants(body: Any) -> Iterator[Any]:
    """Yield the body with each of its values replaced by each of `VALUES`."""
    yield from VALUES
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        for variant in variants(value):
            changed = copy.copy(body)
            changed[key] = variant
            yield changed


@pytest.mark.parametrize("protocol", BODIES, ids=lambda protocol: protocol.__name__.rpartition(".")[2])
def test_every_body_is_read_or_refused_with_a_field(protocol: ModuleType):
    bodies = list(variants(BODIES[protocol]))
    number_read = 0
    refusals: list[tuple[RequestError, Any]] = []
    for body in bodies:
        try:
            call = protocol.read(body)
        except RequestError as refused:
            json.dumps(protocol.error(400, str(refused), field=refused.field))
            refusals.append((refused, body))
        else:
            assert isinstance(call, AgentCall)
            assert all(isinstance(message["content"], str) for message in call.messages)
            number_read += 1
    assert 0 < number_read < len(bodies)
    for refused, body in refusals:
        assert f"`{refused.field or 'body'}" in str(refused)
        assert bool(refused.field) == isinstance(body, dict), str(refused)
