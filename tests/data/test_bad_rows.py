"""Rows that cannot be used: refused with the way out, or left out and counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError, DataError
from agentrl.types import Prompt

GOOD = {"prompt": "Hi.", "answer": "x"}
PICTURE = {"prompt": [{"role": "user", "content": [{"type": "image_url"}]}], "answer": "x"}


def write(folder: Path, *rows: dict[str, Any] | str) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def dataset(path: Path, **changes: Any) -> PromptDataset:
    options: dict[str, Any] = {"prompt_key": "prompt", "answer_key": "answer", "system_prompt": None}
    return PromptDataset([path], shuffle=False, seed=0, **(options | changes))


def test_bad_rows_are_left_out_and_counted_with_the_first_reasons(tmp_path: Path):
    path = write(tmp_path, GOOD, "{torn", {"answer": "x"}, GOOD, PICTURE, GOOD | {"id": [1]})
    data = dataset(path, skip_bad_rows=True)
    assert [prompt.prompt_id for prompt in data.all()] == ["train-1", "train-4"]
    [warning] = data.warnings
    assert warning.startswith(f"{path}: 4 of 6 rows are left out (`data.on_bad_row` is `skip`): {path}:2: not JSON: ")
    assert f"; {path}:3: no value in column `prompt`" in warning
    assert "is of type `image_url`" in warning
    assert warning.endswith("; ...")


@pytest.mark.parametrize("bad", [PICTURE, "{torn", GOOD | {"prompt": None}])
def test_the_first_bad_row_is_an_error_with_the_way_out(tmp_path: Path, bad: Any):
    way_out = r"train\.jsonl:2: .*; `data\.on_bad_row: skip` leaves such rows out$"
    with pytest.raises(ConfigError, match=way_out):
        dataset(write(tmp_path, GOOD, bad))
    assert dataset(write(tmp_path, GOOD)).warnings == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": "Hi.", "answer": "x"},
        {"prompt": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]},
        GOOD | {"id": "train-1"},
    ],
)
def test_no_row_is_to_be_skipped_where_others_are_wrong_in_the_same_way(tmp_path: Path, wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: ") as raised:
        dataset(write(tmp_path, GOOD, wrong))
    assert "on_bad_row" not in str(raised.value)
    assert str(raised.value).count(". ") <= 1


def test_files_without_a_row_that_can_be_used_are_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none of 2 rows can be used; the first: .*train\.jsonl:2: not JSON"):
        dataset(write(tmp_path, PICTURE, "{torn"), skip_bad_rows=True)


def test_a_prompt_that_the_reward_cannot_score_is_a_bad_row(tmp_path: Path):
    def check_prompt(prompt: Prompt) -> None:
        if prompt.answer is None:
            raise DataError("reward: no answer")

    path = write(tmp_path, GOOD, {"prompt": "Hi."})
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: reward: no answer"):
        dataset(path, check_prompt=check_prompt)
    assert len(dataset(path, check_prompt=check_prompt, skip_bad_rows=True)) == 1
