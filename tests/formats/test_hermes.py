import json

import pytest

from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.types import ToolCall

TYPES = {"add": {"a": {"type": "integer"}, "b": {"type": ["number", "null"]}, "note": {"type": "string"}}}
"""Schemas of one tool's parameters."""


def read_hermes(text: str, *, id_prefix: str, in_thought: bool = False) -> tuple[ToolCall, ...]:
    return read_calls(FORMATS["hermes"], text, TYPES, id_prefix=id_prefix, in_thought=in_thought).calls


def test_a_call_is_read_with_its_arguments():
    text = 'I compute.\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
    assert read_hermes(text, id_prefix="2") == (ToolCall(call_id="2-0", name="python", arguments={"code": "print(1)"}),)


def test_text_without_a_call_has_none():
    assert read_hermes("The answer is <answer>\\boxed{3}</answer>", id_prefix="0") == ()


def test_parallel_calls_keep_their_order_and_ids():
    text = "".join(f'<tool_call>{{"name": "tool{n}", "arguments": {{}}}}</tool_call>' for n in range(3))
    calls = read_hermes(text, id_prefix="0")
    assert [(call.call_id, call.name) for call in calls] == [("0-0", "tool0"), ("0-1", "tool1"), ("0-2", "tool2")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "python", "arguments": {"code": }}', "not valid JSON"),
        ("print(1)", "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('["python"]', "not a JSON object"),
        ('{"name": "python", "arguments": {"x": ' + "1" * 5000 + "}}", "not valid JSON"),
        ('{"name": "python", "arguments": {"x": ' + "[" * 600 + "]" * 600 + "}}", "nested deeper than 64 levels"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3, "arguments": {}}', 'no "name"'),
        ('{"name": "python", "arguments": "print(1)"}', '"arguments" is not a JSON object'),
    ],
)
def test_a_malformed_call_is_kept_with_the_reason(body: str, reason: str):
    (call,) = read_hermes(f"<tool_call>{body}</tool_call>", id_prefix="0")
    assert reason in call.parse_error


def test_a_call_that_is_never_closed_is_malformed_not_dropped():
    (call,) = read_hermes('<tool_call>{"name": "python", "arguments": {}}', id_prefix="0")
    assert "not closed" in call.parse_error


def test_one_malformed_call_does_not_spoil_its_neighbour():
    first, second = read_hermes(
        '<tool_call>{</tool_call><tool_call>{"name": "python", "arguments": {}}</tool_call>', id_prefix="0"
    )
    assert first.parse_error
    assert not second.parse_error


def test_a_call_inside_a_thought_is_not_a_call():
    text = '<think><tool_call>{"name": "python", "arguments": {}}</tool_call></think>No need.'
    assert read_hermes(text, id_prefix="0") == ()


def test_a_call_in_a_thought_that_the_template_has_opened_is_not_a_call():
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    text = f"I could write {call % 'considered'}.</think>{call % 'made'}"
    assert [call_read.name for call_read in read_hermes(text, id_prefix="0", in_thought=True)] == ["made"]
    assert [call_read.call_id for call_read in read_hermes(text, id_prefix="0", in_thought=True)] == ["0-0"]


def test_a_call_of_a_policy_that_does_not_think_counts_although_the_template_has_opened_a_thought():
    (call,) = read_hermes('<tool_call>{"name": "p", "arguments": {}}</tool_call>', id_prefix="0", in_thought=True)
    assert call.name == "p"


def test_code_that_prints_a_think_tag_is_still_a_call():
    (call,) = read_hermes(
        """<tool_call>{"name": "p", "arguments": {"code": "print('<think>')"}}</tool_call>""", id_prefix="0"
    )
    assert call.arguments == {"code": "print('<think>')"}


def test_a_real_line_break_inside_code_is_accepted():
    (call,) = read_hermes(
        '<tool_call>{"name": "python", "arguments": {"code": "a = 1\nprint(a)"}}</tool_call>', id_prefix="0"
    )
    assert call.arguments == {"code": "a = 1\nprint(a)"}


def test_llamas_word_for_arguments_is_accepted():
    (call,) = read_hermes('<tool_call>{"name": "python", "parameters": {"code": "1"}}</tool_call>', id_prefix="0")
    assert call.arguments == {"code": "1"}


def test_code_that_prints_the_closing_tag_is_still_a_call():
    code = {"code": "print('</tool_call>')"}
    [call] = read_hermes(f'<tool_call>{{"name": "p", "arguments": {json.dumps(code)}}}</tool_call>', id_prefix="0")
    assert call.arguments == code


def test_a_tag_in_prose_hides_no_call():
    text = 'I answer in <tool_call> tags.\n<tool_call>{"name": "p", "arguments": {"x": 1}}</tool_call>'
    [call] = read_hermes(text, id_prefix="0")
    assert call == ToolCall(call_id="0-0", name="p", arguments={"x": 1})


@pytest.mark.parametrize("arguments", ["null", "{}", '"{}"'])
def test_no_arguments_may_be_null_an_object_or_json_in_a_string(arguments: str):
    [call] = read_hermes(f'<tool_call>{{"name": "p", "arguments": {arguments}}}</tool_call>', id_prefix="0")
    assert (call.arguments, call.parse_error) == ({}, "")


def test_arguments_may_be_json_in_a_string():
    text = json.dumps({"name": "p", "arguments": json.dumps({"code": "print(1)"})})
    [call] = read_hermes(f"<tool_call>{text}</tool_call>", id_prefix="0")
    assert call.arguments == {"code": "print(1)"}


def test_text_becomes_a_number_where_the_schema_takes_no_text():
    text = json.dumps({"name": "add", "arguments": {"a": "5", "b": "1.5", "note": "7", "other": "8"}})
    [call] = read_hermes(f"<tool_call>{text}</tool_call>", id_prefix="0")
    assert call.arguments == {"a": 5, "b": 1.5, "note": "7", "other": "8"}


def test_text_that_is_no_number_stays_text():
    text = json.dumps({"name": "add", "arguments": {"a": "five", "b": "null"}})
    [call] = read_hermes(f"<tool_call>{text}</tool_call>", id_prefix="0")
    assert call.arguments == {"a": "five", "b": None}
