import json
from typing import Any

import pytest

from agentrl.agent_loop.gateway.protocols import anthropic_messages
from agentrl.agent_loop.gateway.protocols.base import AgentCall, RequestError
from agentrl.types import FinishReason, ToolCall
from tests.agent_loop.gateway.protocols.scripted_gateway import reply

TOOL = {
    "name": "calc",
    "description": "Compute.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
}
SECOND_TURN: dict[str, Any] = {
    "max_tokens": 512,
    "messages": [
        {"role": "user", "content": "What is 431 - 27?"},
        {
            "role": "assistant",
            "content": [
                {"signature": "0-p0-0.0", "thinking": "Subtract.", "type": "thinking"},
                {"text": "Let me see.", "type": "text"},
                {"id": "c0", "input": {"a": "431 - 27"}, "name": "calc", "type": "tool_use"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "404"}]},
                {"type": "text", "text": "Be brief."},
            ],
        },
    ],
    "model": "policy",
    "tools": [TOOL],
}
"""Recorded from anthropic 2.14, with a text after the result."""


def test_a_second_turn_becomes_messages_of_a_template():
    call = anthropic_messages.read(SECOND_TURN | {"system": [{"type": "text", "text": "Use the tool."}]})
    assert call.messages == [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "What is 431 - 27?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Subtract.",
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "calc", "arguments": {"a": "431 - 27"}}}
            ],
        },
        {"role": "tool", "content": "404", "tool_call_id": "c0", "name": "calc"},
        {"role": "user", "content": "Be brief."},
    ]
    assert call.tools[0]["function"]["parameters"] == TOOL["input_schema"]
    assert call.max_tokens == 512


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "calc"}, "calc"),
        ({"type": "none"}, "none"),
        (None, "auto"),
    ],
)
def test_choices_of_tools_are_translated(choice: Any, expected: str):
    assert anthropic_messages.read(SECOND_TURN | {"tool_choice": choice}).tool_choice == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "It is"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"tool_choice": {"type": "tool", "name": "clac"}}, "tool_choice.name"),
    ],
)
def test_what_a_policy_in_training_cannot_give_is_refused_by_name(fields: dict[str, Any], field: str):
    with pytest.raises(RequestError) as refused:
        anthropic_messages.read(SECOND_TURN | fields)
    assert refused.value.field == field


def test_an_answer_can_be_sent_back():
    said = reply("Let me see.", ToolCall(call_id="c0", name="calc", arguments={"a": "1"}), thought="Hm.")
    written = anthropic_messages.write(said)
    assert (written["stop_reason"], written["usage"]) == ("tool_use", {"input_tokens": 12, "output_tokens": 5})
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c0", "content": "1"}]}
    answer = {"role": "assistant", "content": written["content"]}
    message = anthropic_messages.read({"messages": [answer, result]}).messages[0]
    assert (message["content"], message["reasoning_content"]) == ("Let me see.", "Hm.")
    assert message["tool_calls"][0]["function"] == {"name": "calc", "arguments": {"a": "1"}}


def test_events_fill_the_blocks_that_they_open():
    said = reply("Let me see.", ToolCall(call_id="c0", name="calc", arguments={"a": "é"}), thought="Hm.")
    data = [json.loads(event.split("data: ")[1]) for event in anthropic_messages.events(said, AgentCall(messages=[]))]
    starts = [item["content_block"] for item in data if item["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c0", "name": "calc", "input": {}},
    ]
    deltas = [(item["index"], item["delta"]) for item in data if item["type"] == "content_block_delta"]
    assert deltas[-1] == (2, {"type": "input_json_delta", "partial_json": '{"a":"é"}'})
    assert data[0]["message"]["stop_reason"] is None
    assert [item["type"] for item in data[-2:]] == ["message_delta", "message_stop"]
    assert data[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_cut_answer_says_so_and_an_error_has_the_form_of_the_api():
    assert anthropic_messages.write(reply("It", finish=FinishReason.LENGTH))["stop_reason"] == "max_tokens"
    error = anthropic_messages.error(400, "`system`: expected text", field="system")
    assert error == {"type": "error", "error": {"type": "invalid_request_error", "message": "`system`: expected text"}}


def test_a_failed_result_is_marked():
    failed = {"type": "tool_result", "tool_use_id": "c0", "content": "no", "is_error": True}
    (message,) = anthropic_messages.read({"messages": [{"role": "user", "content": [failed]}]}).messages
    assert message == {"role": "tool", "content": "no", "tool_call_id": "c0", "is_error": True}


def test_hints_for_a_larger_model_are_counted_and_not_obeyed():
    hints = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "me"},
        "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
    }
    assert anthropic_messages.read(SECOND_TURN | hints).ignored == (
        "thinking",
        "context_management",
        "tools.web_search_20250305",
    )
