"""Rows of public data sets as dialogues."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentrl.data.dialogues import Dialogue, read_dialogue, read_dialogues
from agentrl.data.rows import Row
from agentrl.errors import RowError

CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
ASKED = {"role": "user", "content": "Hi."}
ANSWERED = {"role": "assistant", "content": "Hello."}


def read(values: dict[str, Any], messages_key: str = "messages") -> Dialogue:
    return read_dialogue(Row(path=Path("rows.jsonl"), number=7, values=values), messages_key=messages_key)


@pytest.mark.parametrize(
    "values",
    [
        {"messages": [ASKED, ANSWERED]},
        {"messages": json.dumps([ASKED, ANSWERED])},
        {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}]},
        {"conversations": [ASKED, ANSWERED]},
        {"messages": None, "conversations": [ASKED, ANSWERED]},
        {"prompt": "Hi.", "completion": "Hello."},
        {"prompt": "Hi.", "response": "Hello."},
        {"prompt": [ASKED], "completion": [ANSWERED]},
        {"prompt": json.dumps([ASKED]), "completion": json.dumps([ANSWERED])},
        {"instruction": "Hi.", "input": "", "output": "Hello."},
        {"instruction": "Hi.", "output": "Hello.", "input": None},
    ],
)
def test_every_common_form_of_a_row_is_the_same_dialogue(values: dict[str, Any]):
    assert read(values) == Dialogue(where="rows.jsonl:7", messages=[ASKED, ANSWERED], tools=[])


def test_another_column_of_messages_can_be_named():
    assert read({"dialog": [ASKED, ANSWERED]}, messages_key="dialog").messages == [ASKED, ANSWERED]


@pytest.mark.parametrize("values", [{"messages": [ASKED, ANSWERED]}, {"conversations": [ASKED, ANSWERED]}])
def test_no_other_column_takes_the_place_of_the_named_one(values: dict[str, Any]):
    with pytest.raises(RowError, match=r"no value in column `dialog` \(columns: .*`data\.messages_key`$"):
        read(values, messages_key="dialog")


def test_a_line_that_is_no_json_is_refused_without_keys_of_other_runs(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("{torn\n")
    with pytest.raises(RowError, match=r"rows\.jsonl:1: not JSON") as raised:
        list(read_dialogues([tmp_path / "rows.jsonl"], messages_key="messages"))
    assert "on_bad_row" not in str(raised.value)


def test_the_input_of_an_instruction_follows_it():
    row = {"instruction": "Add.", "input": "1 2", "output": "3"}
    assert read(row).messages[0] == {"role": "user", "content": "Add.\n\n1 2"}


def test_a_system_column_is_put_before_a_dialogue_without_a_system_message():
    system = {"role": "system", "content": "Be kind."}
    assert read({"system": "Be kind.", "messages": [ASKED, ANSWERED]}).messages == [system, ASKED, ANSWERED]
    own = {"role": "system", "content": "Be short."}
    assert read({"system": "Be kind.", "messages": [own, ASKED, ANSWERED]}).messages[0] == own


def test_calls_and_results_of_sharegpt_are_calls_and_results():
    turns = [
        {"from": "human", "value": "1 + 1?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "2."},
    ]
    messages = read({"conversations": turns}).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"] == [CALL]


def test_the_weight_of_a_sharegpt_turn_is_kept():
    turns = [
        {"from": "human", "value": "1 + 1?", "weight": None},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}', "weight": 0},
        {"from": "gpt", "value": "3.", "weight": 0},
        {"from": "gpt", "value": "2.", "weight": 1},
    ]
    messages = read({"conversations": turns}).messages
    assert [message.get("weight") for message in messages] == [None, 0, 0, 1]


def test_the_tags_that_the_template_writes_around_a_result_are_not_doubled():
    turns = [
        {"from": "human", "value": "1 + 1?"},
        {"from": "tool", "value": "<tool_response>\n{}\n</tool_response>\n"},
        {"from": "gpt", "value": "2."},
    ]
    assert read({"conversations": turns}).messages[1] == {"role": "tool", "content": "{}"}


@pytest.mark.parametrize(
    "tools", [[ADD], json.dumps([ADD]), [ADD["function"]], [json.dumps(ADD)], json.dumps([ADD["function"]])]
)
def test_tools_of_a_row_are_schemas_in_every_form(tools: Any):
    assert read({"messages": [ASKED, ANSWERED], "tools": tools}).tools == [ADD]


@pytest.mark.parametrize("tools", [None, "", "[]", []])
def test_a_row_may_have_no_tools(tools: Any):
    assert read({"messages": [ASKED, ANSWERED], "tools": tools}).tools == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"question": "Hi."}, "no dialogue in columns `question`"),
        ({"messages": "Hi."}, "is no JSON"),
        ({"messages": []}, "list of chat messages"),
        ({"messages": [ASKED]}, "no assistant message"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "message 1"),
        ({"conversations": [{"from": "alien", "value": "Hi."}]}, "turn 0"),
        ({"conversations": [{"from": "human", "value": None}]}, "turn 0"),
        ({"conversations": [{"from": "human", "value": "Hi."}, {"from": "function_call", "value": "{"}]}, "no JSON"),
        ({"prompt": "Hi.", "completion": ""}, "column `completion`"),
        ({"messages": [ASKED, ANSWERED], "tools": "{"}, "column `tools` is no JSON"),
        ({"messages": [ASKED, ANSWERED], "tools": [{"name": 1}]}, "tool 0"),
        ({"messages": [ASKED, ANSWERED], "tools": 3}, "column `tools`"),
    ],
)
def test_a_wrong_row_is_named_with_its_place(values: dict[str, Any], problem: str):
    with pytest.raises(RowError, match=r"^rows\.jsonl:7: ") as raised:
        read(values)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_parquet_and_jsonl_with_blank_lines_give_the_same(tmp_path: Path):
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows = [{"messages": [ASKED, call, ANSWERED], "tools": [ADD]}, {"messages": [ASKED, ANSWERED], "tools": []}]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text("\n" + "\n\n".join(json.dumps(row) for row in rows) + "\n  \n")
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    of_lines, of_table = (list(read_dialogues([file], messages_key="messages")) for file in (lines, table))
    assert [(dialogue.messages, dialogue.tools) for dialogue in of_lines] == [
        (dialogue.messages, dialogue.tools) for dialogue in of_table
    ]
    assert [dialogue.where for dialogue in of_lines] == [f"{lines}:2", f"{lines}:4"]
