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


def test_the_first_bad_row_is_an_error_with_the_way_out(tmp_path: Path):
    way_out = r"train\.jsonl:2: .*Correct the row, or leave such rows out with `data\.on_bad_row: skip`"
    with pytest.raises(ConfigError, match=way_out):
        dataset(write(tmp_path, GOOD, PICTURE))
    assert dataset(write(tmp_path, GOOD)).warnings == []


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
