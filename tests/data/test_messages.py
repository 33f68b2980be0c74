"""Messages as OpenAI's API, Parquet files and Hermes' data sets have them; pyarrow writes the files as `datasets` does."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentrl.data.messages import read_messages
from agentrl.data.rows import read_rows
from agentrl.errors import ConfigError, RowError

ARGUMENTS = {"code": "print(1)", "input": ""}
QUESTION = {"role": "user", "content": "How many?"}


def call(arguments: Any, name: str = "python") -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [function(arguments, name)]}


def function(arguments: Any, name: str = "python") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def through_parquet(folder: Path, *dialogues: list[dict[str, Any]]) -> list[Any]:
    path = folder / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": dialogue} for dialogue in dialogues]), path)
    return [read_messages(row.values["messages"], where=row.where) for row in read_rows(path)]


def read(*messages: Any) -> list[dict[str, Any]]:
    return read_messages(list(messages), where="train.jsonl:7: column `messages`")


def test_arguments_that_are_json_text_become_a_mapping():
    reply = {"role": "tool", "content": "1", "tool_call_id": "a"}
    openai = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"} | function(json.dumps(ARGUMENTS))]}
    [_, message, answer] = read(QUESTION, openai, reply)
    assert message == {"role": "assistant", "content": "", "tool_calls": [{"id": "a"} | function(ARGUMENTS)]}
    assert answer == reply


@pytest.mark.parametrize("empty", ["", None, "{}", {}])
def test_a_call_without_arguments_has_an_empty_mapping(empty: Any):
    assert read(call(empty)) == [call({})]


def test_a_call_that_is_not_wrapped_in_a_function_is_wrapped():
    bare = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"name": "python", "arguments": ARGUMENTS}]}
    assert read(bare) == [call(ARGUMENTS) | {"content": "Let me see."}]


@pytest.mark.parametrize("text", [False, True])
def test_the_parameters_of_llama_are_the_arguments(text: bool):
    fields = {"name": "python", "parameters": json.dumps(ARGUMENTS) if text else ARGUMENTS}
    nulls = {"name": "python", "arguments": None, "parameters": ARGUMENTS}
    for written in (fields, nulls, {"type": "function", "function": fields}):
        assert read({"role": "assistant", "content": "", "tool_calls": [written]}) == [call(ARGUMENTS)]


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"name": "python", "args": ARGUMENTS}, "`args`"),
        ({"id": "a", "function": {"name": "python", "input": ARGUMENTS, "strict": None}}, "`input`"),
        ({"function": {"name": "python"}, "arguments": ARGUMENTS}, "`arguments`"),
    ],
)
def test_arguments_under_an_unknown_name_are_refused(fields: dict[str, Any], unknown: str):
    with pytest.raises(RowError, match=rf"`tool_calls\[0\]` has no `arguments`, but {unknown}\. Put its arguments"):
        read({"role": "assistant", "content": "", "tool_calls": [fields]})


def test_text_parts_become_lines_of_text():
    parts = [{"type": "text", "text": "How"}, {"type": "input_text", "text": "many?"}, "Say."]
    assert read({"role": "user", "content": parts}) == [{"role": "user", "content": "How\nmany?\nSay."}]


def test_fields_that_parquet_adds_are_absent_at_every_depth(tmp_path: Path):
    search = {"query": "x", "filters": {"year": 1999, "where": [{"city": "Rome"}, {"land": "Italy"}]}}
    dialogues = [
        [QUESTION, call(ARGUMENTS), {"role": "tool", "content": "1", "name": "python"}],
        [QUESTION, call(search, "search"), {"role": "assistant", "content": "Two."}],
        [QUESTION, call({"query": "y"}, "search"), {"role": "assistant", "content": "Three."}],
    ]
    assert through_parquet(tmp_path, *dialogues) == dialogues
    assert '"query": null' in json.dumps(parquet.read_table(tmp_path / "train.parquet").to_pylist())


def test_nulls_that_are_meant_survive_in_arguments_that_are_text(tmp_path: Path):
    meant = [call(json.dumps({"query": None}), "search")]
    assert through_parquet(tmp_path, meant) == [[call({"query": None}, "search")]]
    assert read(call({"query": None, "any": [None, 1]})) == [call({"any": [None, 1]})]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "robot", "content": "Hi."}, r"`role` must be one of .*, got 'robot'"),
        ({"role": "user", "content": None}, "`content` must be text or a list of text parts, got None"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "`content` must be text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, r"`content\[0\]` is of type `image_url`"),
        ({"role": "user", "content": [{"type": "text"}]}, r"`content\[0\]` must be text or a part with `text`"),
        ({"role": "user", "content": "Hi.", "tool_calls": [function({})]}, "must be a list of calls in an assistant message"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "write it as `tool_calls`"),
        (call("{'code': 1}"), r"`tool_calls\[0\]`: `arguments` is no JSON: .*{'code': 1}"),
        (call("[1]"), "`arguments` must be a mapping, or one as JSON text"),
        (call({}, name=""), "has no `function.name`"),
        ({"role": "assistant", "content": "", "tool_calls": ["python"]}, "must be a call with `function`, got 'python'"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_used_is_named_with_its_row(message: dict[str, Any], reason: str):
    with pytest.raises(RowError, match=r"^train\.jsonl:7: column `messages`, message 1: .*" + reason):
        read(QUESTION, message)


def test_a_row_error_is_one_of_the_configuration():
    assert issubclass(RowError, ConfigError)


def test_numbers_dates_and_maps_of_parquet_are_plain_data(tmp_path: Path):
    columns = {
        "price": pyarrow.array([Decimal("4.50")]),
        "count": pyarrow.array([Decimal("42.00")]),
        "day": pyarrow.array([datetime.date(2024, 5, 17)]),
        "at": pyarrow.array([datetime.datetime(2024, 5, 17, 12, 30, tzinfo=datetime.UTC)]),
        "half": pyarrow.array([0.5], pyarrow.float16()),
        "yes": pyarrow.array([True]),
        "map": pyarrow.array([{"a": Decimal("1.5")}], pyarrow.map_(pyarrow.string(), pyarrow.decimal128(3, 1))),
        "nested": pyarrow.array([[{"on": datetime.date(2024, 1, 1)}]]),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    [row] = read_rows(tmp_path / "train.parquet")
    assert row.values == {
        "price": 4.5,
        "count": 42,
        "day": "2024-05-17",
        "at": "2024-05-17T12:30:00+00:00",
        "half": 0.5,
        "yes": True,
        "map": {"a": 1.5},
        "nested": [{"on": "2024-01-01"}],
    }
    assert [type(value) for value in row.values.values()] == [float, int, str, str, float, bool, dict, list]
