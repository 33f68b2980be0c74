import pytest

from agentrl.agent_loop.tool_parser import parse_tool_calls
from agentrl.types import ToolCall


def test_a_call_is_read_with_its_arguments():
    text = 'I compute.\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
    assert parse_tool_calls(text, id_prefix="2") == (
        ToolCall(call_id="2-0", name="python", arguments={"code": "print(1)"}),
    )


def test_text_without_a_call_has_none():
    assert parse_tool_calls("The answer is <answer>\\boxed{3}</answer>", id_prefix="0") == ()


def test_parallel_calls_keep_their_order_and_ids():
    text = "".join(f'<tool_call>{{"name": "tool{n}", "arguments": {{}}}}</tool_call>' for n in range(3))
    calls = parse_tool_calls(text, id_prefix="0")
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
    (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>", id_prefix="0")
    assert reason in call.parse_error


def test_a_call_that_is_never_closed_is_malformed_not_dropped():
    (call,) = parse_tool_calls('<tool_call>{"name": "python", "arguments": {}}', id_prefix="0")
    assert "not closed" in call.parse_error


def test_one_malformed_call_does_not_spoil_its_neighbour():
    first, second = parse_tool_calls(
        '<tool_call>{</tool_call><tool_call>{"name": "python", "arguments": {}}</tool_call>', id_prefix="0"
    )
    assert first.parse_error
    assert not second.parse_error


def test_a_call_inside_a_thought_is_not_a_call():
    text = '<think><tool_call>{"name": "python", "arguments": {}}</tool_call></think>No need.'
    assert parse_tool_calls(text, id_prefix="0") == ()


def test_a_call_in_a_thought_that_the_template_has_opened_is_not_a_call():
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    text = f"I could write {call % 'considered'}.</think>{call % 'made'}"
    assert [call_read.name for call_read in parse_tool_calls(text, id_prefix="0", in_thought=True)] == ["made"]
    assert [call_read.call_id for call_read in parse_tool_calls(text, id_prefix="0", in_thought=True)] == ["0-0"]


def test_a_call_of_a_policy_that_does_not_think_counts_although_the_template_has_opened_a_thought():
    (call,) = parse_tool_calls('<tool_call>{"name": "p", "arguments": {}}</tool_call>', id_prefix="0", in_thought=True)
    assert call.name == "p"


def test_code_that_prints_a_think_tag_is_still_a_call():
    (call,) = parse_tool_calls(
        """<tool_call>{"name": "p", "arguments": {"code": "print('<think>')"}}</tool_call>""", id_prefix="0"
    )
    assert call.arguments == {"code": "print('<think>')"}


def test_a_real_line_break_inside_code_is_accepted():
    (call,) = parse_tool_calls(
        '<tool_call>{"name": "python", "arguments": {"code": "a = 1\nprint(a)"}}</tool_call>', id_prefix="0"
    )
    assert call.arguments == {"code": "a = 1\nprint(a)"}


def test_llamas_word_for_arguments_is_accepted():
    (call,) = parse_tool_calls('<tool_call>{"name": "python", "parameters": {"code": "1"}}</tool_call>', id_prefix="0")
    assert call.arguments == {"code": "1"}
