import json
from typing import Any

import pytest

from agentrl.agent_loop.gateway.protocols import openai_responses
from agentrl.agent_loop.gateway.protocols.base import AgentCall, RequestError
from agentrl.types import FinishReason, ToolCall
from tests.agent_loop.gateway.protocols.scripted_gateway import reply

TOOL = {
    "name": "calc",
    "parameters": {
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "type": "object",
        "additionalProperties": False,
    },
    "strict": True,
    "type": "function",
    "description": "Compute.",
}
SECOND_TURN: dict[str, Any] = {
    "model": "policy",
    "include": [],
    "input": [
        {"content": "What is 431 - 27?", "role": "user"},
        {
            "id": "rs_0",
            "summary": [],
            "type": "reasoning",
            "content": [{"text": "Subtract.", "type": "reasoning_text"}],
        },
        {
            "id": "msg_0",
            "content": [{"annotations": [], "text": "Let me see.", "type": "output_text", "logprobs": []}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        },
        {"arguments": '{"a":"431 - 27"}', "call_id": "c0", "name": "calc", "type": "function_call", "id": "fc_c0"},
        {"arguments": '{"a":"1"}', "call_id": "c1", "name": "calc", "type": "function_call", "id": "fc_c1"},
        {"call_id": "c0", "output": "404", "type": "function_call_output"},
        {"call_id": "c1", "output": [{"type": "input_text", "text": "1"}], "type": "function_call_output"},
    ],
    "instructions": "Use the tool.",
    "tools": [TOOL],
}
"""Recorded from openai-agents 0.24, with a second call added."""


def test_thought_text_and_calls_of_a_turn_become_a_single_message():
    call = openai_responses.read(SECOND_TURN)
    assert [message["role"] for message in call.messages] == ["system", "user", "assistant", "tool", "tool"]
    answer = call.messages[2]
    assert (answer["reasoning_content"], answer["content"]) == ("Subtract.", "Let me see.")
    assert [(c["id"], c["function"]["arguments"]) for c in answer["tool_calls"]] == [
        ("c0", {"a": "431 - 27"}),
        ("c1", {"a": "1"}),
    ]
    assert call.messages[4] == {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "calc"}
    assert call.tools[0]["function"] == {key: TOOL[key] for key in ("name", "description", "parameters")}


def test_a_text_is_a_question_and_two_answers_in_a_row_stay_two():
    assert openai_responses.read({"input": "Hi"}).messages == [{"role": "user", "content": "Hi"}]
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    assert openai_responses.read({"input": said}).messages == said


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "rs_0"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "output": "4"}]}, "input[0].call_id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "clac"}}, "tool_choice"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
    ],
)
def test_what_needs_state_or_another_model_is_refused_by_name(fields: dict[str, Any], field: str):
    with pytest.raises(RequestError) as refused:
        openai_responses.read(SECOND_TURN | fields)
    assert refused.value.field == field


def test_harmless_fields_are_accepted():
    fields = {"store": True, "truncation": "auto", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}}
    call = openai_responses.read(SECOND_TURN | fields | {"tool_choice": {"type": "function", "name": "calc"}})
    assert (call.tool_choice, call.ignored) == ("calc", ("reasoning",))


def test_an_answer_can_be_sent_back_as_input():
    written = openai_responses.write(
        reply("Let me see.", ToolCall(call_id="c0", name="calc", arguments={"a": "1"}), thought="Hm.")
    )
    assert written["status"] == "completed"
    (answer,) = openai_responses.read({"input": written["output"]}).messages
    assert (answer["content"], answer["reasoning_content"]) == ("Let me see.", "Hm.")
    assert answer["tool_calls"][0]["function"] == {"name": "calc", "arguments": {"a": "1"}}


def test_events_are_numbered_and_close_what_they_open():
    call = AgentCall(messages=[], stream=True)
    said = reply("Let me see.", ToolCall(call_id="c0", name="calc", arguments={"a": "1"}), thought="Hm.")
    events = list(openai_responses.events(said, call))
    data = [json.loads(event.split("data: ")[1]) for event in events]
    assert [item["sequence_number"] for item in data] == list(range(len(data)))
    assert all(event.startswith(f"event: {item['type']}\ndata: ") for event, item in zip(events, data, strict=True))
    kinds = [item["type"].removeprefix("response.") for item in data]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 3
    deltas = {item["type"].split(".")[1]: item["delta"] for item in data if "delta" in item}
    assert deltas == {"reasoning_text": "Hm.", "output_text": "Let me see.", "function_call_arguments": '{"a":"1"}'}
    assert data[-1]["response"] == openai_responses.write(said)


def test_a_cut_answer_is_incomplete():
    said = reply("It is", finish=FinishReason.LENGTH)
    assert openai_responses.write(said)["incomplete_details"] == {"reason": "max_output_tokens"}
    assert list(openai_responses.events(said, AgentCall(messages=[])))[-1].startswith("event: response.incomplete\n")


def test_tools_that_are_no_functions_are_left_out_and_counted():
    """Codex 0.171 sends such tools always, and stops at a refusal."""
    tools = [TOOL, {"type": "namespace", "name": "multi_agent_v1", "tools": []}, {"type": "web_search"}]
    call = openai_responses.read(SECOND_TURN | {"tools": tools})
    assert [tool["function"]["name"] for tool in call.tools] == ["calc"]
    assert call.ignored == ("tools.namespace", "tools.web_search")
