import json
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentrl.data.prompts import PromptDataset, name_files
from agentrl.errors import ConfigError


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=2)
    return path


def dataset(*files: Path, **changes: Any) -> PromptDataset:
    options: dict[str, Any] = {
        "prompt_key": "prompt",
        "answer_key": "answer",
        "system_prompt": None,
        "shuffle": True,
        "seed": 0,
    }
    return PromptDataset(files, **(options | changes))


def numbered(path: Path, count: int = 10) -> Path:
    return write_jsonl(path, [{"prompt": f"Compute {n} + 1.", "answer": n + 1} for n in range(count)])


VERL_ROWS = [
    {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Compute {n} + 1."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(n + 1), "style": "rule"},
        "extra_info": {"index": f"uuid-{n}", "split": "train"},
    }
    for n in range(5)
]


def test_each_prompt_is_given_once_per_epoch(tmp_path: Path) -> None:
    data = dataset(numbered(tmp_path / "train.jsonl"))
    taken = [prompt.answer for _ in range(5) for prompt in data.take(4)]
    for epoch in (taken[:10], taken[10:]):
        assert Counter(epoch) == Counter(n + 1 for n in range(10))
    assert taken[:10] != taken[10:]
    assert data.position == 20


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = numbered(tmp_path / "train.jsonl")
    first, repeated, other = (dataset(path, seed=seed).take(10) for seed in (1, 1, 2))
    assert first == repeated
    assert first != other


def test_the_order_never_changes_between_releases(tmp_path: Path) -> None:
    """Reference: what the first release gave; the position in a checkpoint means these prompts."""
    data = dataset(numbered(tmp_path / "train.jsonl"), seed=7)
    ids = " ".join(prompt.prompt_id.removeprefix("train-") for prompt in data.take(12))
    assert ids == "8 2 3 7 1 9 5 10 6 4 2@epoch1 8@epoch1"


def test_without_shuffling_prompts_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = (numbered(tmp_path / "b.jsonl", 2), numbered(tmp_path / "a.jsonl", 2))
    taken = dataset(*files, shuffle=False).take(5)
    assert [prompt.prompt_id for prompt in taken] == ["b-1", "b-2", "a-1", "a-2", "b-1@epoch1"]


@pytest.mark.parametrize("position", [0, 3, 10, 17, 25])
def test_seek_goes_on_where_a_killed_run_stopped(tmp_path: Path, position: int) -> None:
    path = numbered(tmp_path / "train.jsonl")
    whole = dataset(path).take(30)
    resumed = dataset(path)
    resumed.seek(position)
    assert resumed.take(30 - position) == whole[position:]


def test_a_prompt_knows_its_data_set_by_column_or_file(tmp_path: Path) -> None:
    row = {"prompt": "1 + 1", "answer": "2", "id": "own"}
    named = write_jsonl(tmp_path / "math.jsonl", [row, {**row, "id": "other", "data_source": "openai/gsm8k"}])
    data = dataset(named, numbered(tmp_path / "sums.jsonl", 1), shuffle=False)
    assert [prompt.data_set for prompt in data.all()] == ["math", "openai/gsm8k", "sums"]


def test_seek_goes_back_too(tmp_path: Path) -> None:
    data = dataset(numbered(tmp_path / "validation.jsonl"))
    first = data.take(len(data))
    data.seek(0)
    assert data.take(len(data)) == first


def test_a_prompt_drawn_twice_in_one_step_has_two_ids(tmp_path: Path) -> None:
    taken = dataset(numbered(tmp_path / "train.jsonl", 3)).take(9)
    assert len({prompt.prompt_id for prompt in taken}) == 9


def test_text_becomes_one_user_message_after_the_system_prompt(tmp_path: Path) -> None:
    (prompt,) = dataset(numbered(tmp_path / "train.jsonl", 1), system_prompt="Use tools.").take(1)
    assert prompt.messages == [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Compute 0 + 1."},
    ]
    assert prompt.answer == 1


def test_the_system_prompt_does_not_replace_that_of_a_row(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Hi."}]
    path = write_jsonl(tmp_path / "train.jsonl", [{"messages": messages, "answer": "x"}])
    (prompt,) = dataset(path, system_prompt="Use tools.").take(1)
    assert prompt.messages == messages


def test_parquet_with_the_columns_of_rstar2_is_read(tmp_path: Path) -> None:
    taken = dataset(write_parquet(tmp_path / "dapo.parquet", VERL_ROWS), shuffle=False).take(5)
    assert [prompt.prompt_id for prompt in taken] == [f"dapo-uuid-{n}" for n in range(5)]
    assert taken[3].messages == [{"role": "user", "content": "Compute 3 + 1."}]
    assert taken[3].answer == "4"


def test_jsonl_and_parquet_with_the_same_rows_give_the_same_prompts(tmp_path: Path) -> None:
    from_parquet = dataset(write_parquet(tmp_path / "dapo.parquet", VERL_ROWS)).take(10)
    from_jsonl = dataset(write_jsonl(tmp_path / "dapo.jsonl", VERL_ROWS)).take(10)
    assert from_parquet == from_jsonl


def test_other_columns_are_extra_and_the_answer_is_not_among_them(tmp_path: Path) -> None:
    (prompt,) = dataset(write_jsonl(tmp_path / "dapo.jsonl", VERL_ROWS[:1])).take(1)
    assert prompt.extra == {
        "data_source": "math_dapo",
        "ability": "MATH",
        "reward_model": {"style": "rule"},
        "extra_info": {"index": "uuid-0", "split": "train"},
    }


def test_column_names_come_from_the_configuration(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"question": "1 + 1?", "solution": {"final": 2}, "answer": "no"}])
    (prompt,) = dataset(path, prompt_key="question", answer_key="solution.final").take(1)
    assert (prompt.messages[0]["content"], prompt.answer) == ("1 + 1?", 2)
    assert prompt.extra == {"solution": {}, "answer": "no"}


def test_messages_that_are_json_text_are_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"}]
    texts = [json.dumps(messages), " [1, 2]: which is larger?", '["role"]', "[]", '[{"role": "user"']
    data = dataset(write_jsonl(tmp_path / "train.jsonl", [{"prompt": text} for text in texts]), shuffle=False)
    [decoded, *others] = [prompt.messages for prompt in data.all()]
    assert decoded == messages
    assert others == [[{"role": "user", "content": text}] for text in texts[1:]]


@pytest.mark.parametrize("key", ["prompt_key", "answer_key"])
def test_no_other_column_takes_the_place_of_one_that_the_user_names(tmp_path: Path, key: str) -> None:
    row = {"prompt": "1", "messages": "2", "answer": "3", "reward_model": {"ground_truth": "4"}}
    with pytest.raises(ConfigError, match=rf"no value in column `asked` \(columns: .*`data\.{key}`$"):
        dataset(write_jsonl(tmp_path / "train.jsonl", [row]), **{key: "asked"})


def test_fields_that_parquet_adds_to_messages_are_left_out(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi."}, {"role": "tool", "content": "5", "name": "python"}]
    path = write_parquet(tmp_path / "train.parquet", [{"prompt": messages, "answer": "x"}])
    (prompt,) = dataset(path).take(1)
    assert prompt.messages == messages


def test_an_own_id_is_kept_as_it_is(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"id": 17, "prompt": "Hi.", "answer": "x"}])
    (prompt,) = dataset(path).take(1)
    assert prompt.prompt_id == "17"
    assert prompt.extra == {}


def test_an_id_that_occurs_twice_is_an_error_that_names_both_places(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "Hi.", "answer": "x"}
    path = write_jsonl(tmp_path / "train.jsonl", [row, row])
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: prompt id `a` is also that of .*train\.jsonl:1\."):
        dataset(path)


def test_repeated_indices_give_way_to_row_numbers(tmp_path: Path) -> None:
    """DAPO-Math-17k repeats every row, index included, about a hundred times."""
    path = write_jsonl(tmp_path / "dapo.jsonl", [VERL_ROWS[0], VERL_ROWS[0]])
    data = dataset(path, shuffle=False)
    assert [prompt.prompt_id for prompt in data.take(2)] == ["dapo-1", "dapo-2"]
    assert data.warnings == [f"{path}: `extra_info.index` is not unique; prompts are named by row number"]


def test_files_of_one_name_in_two_folders_do_not_share_ids(tmp_path: Path) -> None:
    files = (numbered(tmp_path / "math" / "train.jsonl", 1), numbered(tmp_path / "code" / "train.jsonl", 1))
    assert [prompt.prompt_id for prompt in dataset(*files, shuffle=False).take(2)] == ["train-1", "code-train-1"]


def test_names_of_files_do_not_depend_on_later_ones_and_none_is_given_twice() -> None:
    a, b, deep = Path("/data/a/train.jsonl"), Path("/data/b/train.jsonl"), Path("/data/more/b/train.jsonl")
    files = [a, b, Path("/data/test.jsonl"), a, deep]
    names = name_files(files)
    assert list(names.values()) == ["train", "b-train", "test", "/data/more/b/train.jsonl"]
    assert all(names.items() >= name_files(files[:count]).items() for count in range(len(files)))


def test_a_file_named_twice_is_an_error(tmp_path: Path) -> None:
    path = numbered(tmp_path / "train.jsonl")
    with pytest.raises(ConfigError, match="name each file once"):
        dataset(path, path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "x"}, r"no value in column `prompt` or `messages` \(columns: `answer`\).*`data\.prompt_key`"),
        ({"prompt": " ", "answer": "x"}, "column `prompt` must be text or a list of chat messages, got ' '"),
        ({"prompt": [], "answer": "x"}, "column `prompt` must be text or a list of chat messages"),
        ({"prompt": ["Hi."], "answer": "x"}, "column `prompt`, message 0: must be a mapping with `role` and `content`"),
        (
            {"prompt": [{"role": "robot", "content": "Hi."}], "answer": "x"},
            "column `prompt`, message 0: `role` .* got 'robot'",
        ),
        ({"prompt": [{"role": "user"}], "answer": "x"}, "column `prompt`, message 0: `content` must be text"),
        ({"prompt": "Hi.", "answer": "x", "id": [1]}, "column `id` must be text or a number"),
        (
            {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]},
            "column `messages` ends with an assistant message",
        ),
    ],
)
def test_a_bad_row_is_an_error_with_file_line_and_column(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", [{"prompt": "Hi.", "answer": "x"}, row])
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: .*" + message):
        dataset(path)


def test_a_bad_parquet_row_is_an_error_with_its_number(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi.", "answer": "x"}] * 3 + [{"prompt": None, "answer": "x"}]
    with pytest.raises(ConfigError, match=r"train\.parquet: row 4: no value in column `prompt`"):
        dataset(write_parquet(tmp_path / "train.parquet", rows))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", b'{"prompt": "Hi.", \n', r"train\.jsonl:1: not JSON: "),
        ("train.jsonl", b'\n"Hi."\n', r"train\.jsonl:2: expected a JSON object, got str"),
        ("train.jsonl", b"\n", r"no prompts in .*train\.jsonl"),
        (
            "train.csv",
            b"prompt,answer\n",
            r"train\.csv: cannot read `\.csv` files; prompts come as \.jsonl or \.parquet",
        ),
        ("train.parquet", b"PAR1 torn", r"train\.parquet: cannot be read as Parquet"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        dataset(path)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("{}")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")  # which root never meets

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"train\.jsonl: cannot be read: Permission denied"):
        dataset(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.jsonl: no such file"):
        dataset(tmp_path / "train.jsonl")


def test_a_folder_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder, name the files in it"):
        dataset(tmp_path)


def test_no_files_at_all_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no prompts in an empty list of data files"):
        dataset()


def test_values_that_only_parquet_has_are_plain_data_in_extra(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet", [{"prompt": "Hi.", "answer": "x", "day": date(2026, 11, 5)}])
    (prompt,) = dataset(path).take(1)
    assert prompt.extra == {"day": "2026-11-05"}
