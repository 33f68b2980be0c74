"""The bodies are those that the clients of tests/agent_loop/gateway/clients send."""

import json
from typing import Any

import pytest

from agentrl.agent_loop.gateway.protocols import openai_chat
from agentrl.agent_loop.gateway.protocols.base import RequestError
from agentrl.types import FinishReason, ToolCall
from tests.agent_loop.gateway.protocols.scripted_gateway import reply

TOOL = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Compute.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
USER = {"role": "user", "content": "What is 431 - 27?"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [USER], **fields}


def test_a_second_turn_becomes_messages_of_a_template():
    call = openai_chat.read(
        body(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "431 - 27?"}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "Subtract.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "calc", "arguments": '{"a": 1.50, "b": "é"}'},
                        }
                    ],
                },
                {"role": "tool", "content": "404", "tool_call_id": "c1"},
            ],
            tools=[{"type": "function", "function": {**TOOL["function"], "strict": True}}],
        )
    )
    assert call.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is\n431 - 27?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Subtract.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": {"a": 1.5, "b": "é"}}}
            ],
        },
        {"role": "tool", "content": "404", "tool_call_id": "c1", "name": "calc"},
    ]
    assert call.tools == (TOOL,)


def test_limits_and_choices_are_read_and_sampling_is_reported_as_ignored():
    call = openai_chat.read(
        body(
            max_tokens=7,
            max_completion_tokens=5,
            stop="END",
            stream=True,
            stream_options={"include_usage": True},
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "calc"}},
            temperature=0,
            seed=1,
            user="me",
            store=False,
        )
    )
    assert (call.max_tokens, call.stop, call.tool_choice) == (5, ("END",), "calc")
    assert call.stream
    assert call.stream_usage
    assert call.model == "policy"
    assert call.ignored == ("temperature", "seed")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "tool", "content": "404"}]}, "messages[0].tool_call_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"function": {}}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "clac"}}}, "tool_choice"),
    ],
)
def test_what_a_policy_in_training_cannot_give_is_refused_by_name(fields: dict[str, Any], field: str):
    with pytest.raises(RequestError, match=f"`{field}`".replace("[", r"\[")) as refused:
        openai_chat.read(body(**fields))
    assert refused.value.field == field


@pytest.mark.parametrize("arguments", ["[1]", "{", "[" * 100_000, 5])
def test_arguments_that_are_no_object_are_refused(arguments: Any):
    call = {"id": "c", "type": "function", "function": {"name": "calc", "arguments": arguments}}
    with pytest.raises(RequestError) as refused:
        openai_chat.read(body(messages=[USER, {"role": "assistant", "tool_calls": [call]}]))
    assert refused.value.field == "messages[1].tool_calls[0].function.arguments"


def test_null_and_values_that_ask_for_nothing_are_accepted():
    openai_chat.read(
        body(n=1, response_format={"type": "text"}, stop=None, tools=None, logprobs=False, tool_choice=None)
    )


def test_an_answer_has_text_thought_calls_and_counts():
    answer = openai_chat.write(
        reply("Let me see.", ToolCall(call_id="c1", name="calc", arguments={"a": "é"}), thought="Hm.")
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["reasoning_content"] == "Hm."
    (call,) = choice["message"]["tool_calls"]
    assert call == {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"a":"é"}'}}
    assert answer["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


def test_a_cut_answer_says_so_although_it_has_calls():
    answer = openai_chat.write(reply("", ToolCall(call_id="c", name="calc"), finish=FinishReason.LENGTH))
    assert answer["choices"][0]["finish_reason"] == "length"


def test_events_add_up_to_the_answer_and_end_with_the_counts():
    call = openai_chat.read(body(stream=True, stream_options={"include_usage": True}))
    calls = [ToolCall(call_id=f"c{number}", name="calc", arguments={"a": number}) for number in range(2)]
    *chunks, done = openai_chat.events(reply("Hi", *calls, thought="Hm."), call)
    data = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hi"
    assert [delta["tool_calls"][0]["index"] for delta in deltas if "tool_calls" in delta] == [0, 1]
    assert data[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (data[-1]["choices"], data[-1]["usage"]["total_tokens"]) == ([], 17)
    assert done == "data: [DONE]\n\n"
