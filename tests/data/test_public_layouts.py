"""Rows as the preprocessing scripts of verl, Search-R1 and DAPO write them, through Parquet, into prompts."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.code_tests import CodeTestsReward
from agentrl.rewards.math_answer import MathAnswerReward
from agentrl.types import Prompt

GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [
        {"role": "user", "content": 'How many? Let\'s think step by step and output the final answer after "####".'}
    ],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {
        "split": "train",
        "index": 0,
        "answer": "She sold 48/2 = 24 clips.\n#### 72",
        "need_tools_kwargs": True,
        "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}},
    },
}
SEARCH_R1 = {
    "id": "train_0",
    "question": "total number of death row inmates in the us?",
    "golden_answers": ["2,718"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer the given question. Question: total number of death row inmates?"}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["2,718"]}},
    "extra_info": {"split": "train", "index": 0},
}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Solve the problem. The last line must be of the form Answer: $Answer."}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
}


def read(folder: Path, *rows: dict[str, Any], **changes: Any) -> list[Prompt]:
    path = folder / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    options: dict[str, Any] = {"prompt_key": "prompt", "answer_key": "answer", "system_prompt": None}
    return PromptDataset([path], shuffle=False, seed=0, **(options | changes)).all()


def with_truth(truth: Any) -> dict[str, Any]:
    return DAPO | {"reward_model": {"ground_truth": truth, "style": "rule"}}


def test_a_row_of_gsm8k_keeps_what_its_tools_are_created_with(tmp_path: Path):
    [prompt] = read(tmp_path, GSM8K, check_prompt=MathAnswerReward.check_prompt)
    assert (prompt.prompt_id, prompt.answer) == ("train-0", "72")
    assert prompt.messages == GSM8K["prompt"]
    assert prompt.extra["extra_info"]["tools_kwargs"]["calc_gsm8k_reward"]["create_kwargs"] == {"ground_truth": "72"}


def test_a_row_of_search_r1_hands_its_targets_to_the_reward(tmp_path: Path):
    [prompt] = read(tmp_path, SEARCH_R1)
    assert (prompt.prompt_id, prompt.answer) == ("train_0", {"target": ["2,718"]})
    assert prompt.extra["golden_answers"] == ["2,718"]


@pytest.mark.parametrize("truth", ["34", 34, 0.5, ["a", "b"], {"target": ["x"]}, True])
def test_a_ground_truth_reaches_the_reward_as_it_is(tmp_path: Path, truth: Any):
    [prompt] = read(tmp_path, with_truth(truth))
    assert prompt.answer == truth
    assert type(prompt.answer) is type(truth)


def test_rows_need_no_answer_where_the_reward_needs_none(tmp_path: Path):
    [prompt] = read(tmp_path, {"prompt": "Write a poem."})
    assert prompt.answer is None
    with pytest.raises(ConfigError, match=r"row 1: no value in column `solution` \(columns: "):
        read(tmp_path, {"prompt": "Write a poem."}, answer_key="solution")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (SEARCH_R1, r"row 1: reward: the reference answer of prompt `train_0` is {'target': .*takes text or a number"),
        (with_truth(True), "reference answer of prompt `train-9a.*` is True"),
        (with_truth(float("inf")), "reference answer of prompt `train-9a.*` is inf"),
        (with_truth(" "), "has no reference answer"),
        ({"prompt": "Hi."}, "has no reference answer; check `data.answer_key`"),
    ],
)
def test_the_math_reward_refuses_other_answers_before_anything_starts(tmp_path: Path, row: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, row, check_prompt=MathAnswerReward.check_prompt)


def test_the_code_reward_refuses_a_row_without_tests_before_anything_starts(tmp_path: Path):
    with pytest.raises(ConfigError, match="row 1: reward: prompt `train-1` has `tests` = None"):
        read(tmp_path, {"prompt": "Add two numbers."}, check_prompt=CodeTestsReward.check_prompt)
    with pytest.raises(DataError):
        CodeTestsReward.check_prompt(Prompt(prompt_id="p", messages=[], extra={"tests": []}))


def test_a_prompt_with_places_for_pictures_is_refused(tmp_path: Path):
    picture = {"prompt": "<image>How many apples?", "images": [{"bytes": b"png"}], "answer": "2"}
    with pytest.raises(
        ConfigError, match="row 1: the prompt shows `images` at `<image>`, and the policy reads text only"
    ):
        read(tmp_path, picture)
    [prompt] = read(tmp_path, picture | {"prompt": "Edit the picture."})
    assert prompt.extra["images"] == [{"bytes": b"png"}], "a tool may use it"
