"""Handling of prompts that are too long, and of invalid rows, at `--check` and at the start."""

import json
from pathlib import Path

import pytest

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.data.pass_rates import PassRates
from agentrl.errors import ConfigError
from agentrl.models.tokenizer import load_tokenizer
from agentrl.run.plan import prepare
from agentrl.run.preflight.check import CheckLevel, check
from agentrl.run.prompt_sets import count_overlong, held_out_prompts, overlong_warnings, training_prompts

POLICY = "examples/arithmetic/policy"
LONG = "Compute 1 + 1. " * 40


def load(folder: Path, *words: str) -> LoadedConfig:
    rows = [{"prompt": "Compute 1 + 1.", "answer": "2"}, {"prompt": LONG, "answer": "2"}, {"answer": "2"}]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "run.yaml"
    file.write_text(
        f"model: {{path: {POLICY}}}\n"
        "data: {train_files: [train.jsonl], max_prompt_tokens: 150, on_bad_row: skip}\n"
        "rollout: {prompts_per_step: 1, samples_per_prompt: 4, max_response_tokens: 64}\n"
        f"run: {{dir: {folder / 'run'}}}\n"
    )
    return load_run_config(str(file), words)


def lengths(loaded: LoadedConfig) -> dict[str, int]:
    tokens = ChatTokens.of_model(loaded.config.model, [])
    return count_overlong(tokens, training_prompts(loaded.config).all(), loaded.config.data.max_prompt_tokens)


def test_the_length_of_a_prompt_is_that_of_its_rendering(tmp_path: Path):
    tokens = ChatTokens(load_tokenizer(POLICY), [])
    expected = len(tokens.prompt([{"role": "user", "content": LONG}]))
    assert lengths(load(tmp_path)) == {"train-2": expected}
    assert lengths(load(tmp_path, f"data.max_prompt_tokens={expected}")) == {}


def test_prompts_that_are_too_long_are_refused_with_the_way_out_or_left_out_and_counted(tmp_path: Path):
    loaded = load(tmp_path)
    with pytest.raises(
        ConfigError, match=r"prompts of more than 150 tokens, .*: 1 \(`train-2` \(\d+\)\)\. Raise it, or .*: drop`"
    ):
        overlong_warnings(lengths(loaded), loaded.config.data)
    [warning] = overlong_warnings(
        {f"p{n}": 200 for n in range(9)}, load(tmp_path, "data.overlong_prompts=drop").config.data
    )
    assert warning.startswith(
        "prompts of more than 150 tokens, with tools and system text: 9 (`p0` (200), `p1` (200), "
    )
    assert warning.endswith("`p4` (200), ...); left out by `data.overlong_prompts: drop`")
    assert overlong_warnings({}, loaded.config.data) == []


def test_what_is_left_out_is_not_given_and_stays_out_when_the_run_goes_on(tmp_path: Path):
    plan = prepare(load(tmp_path, "data.overlong_prompts=drop"))
    left = plan.without({"train-2"})
    assert [prompt.prompt_id for prompt in left.prompts.take(2)] == ["train-1", "train-1@epoch1"]
    saved = PassRates.decode(left.pass_rates.encode())
    assert saved.left_out == {"train-2"}
    assert len(training_prompts(plan.config).without(saved.left_out)) == 1
    with pytest.raises(ConfigError, match="none of the 2 prompts"):
        plan.without({"train-1", "train-2"})


def test_the_start_tells_of_rows_that_are_left_out(tmp_path: Path):
    loaded = load(tmp_path, "data.overlong_prompts=drop")
    [warning] = [line for line in prepare(loaded).warnings if "rows" in line]
    assert "1 of 3 rows are left out (`data.on_bad_row` is `skip`)" in warning
    with pytest.raises(ConfigError, match=r"train\.jsonl:3: no value in column `prompt`"):
        prepare(load(tmp_path, "data.on_bad_row=error"))


async def test_a_check_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    await check(load(tmp_path, "data.overlong_prompts=drop"), CheckLevel.FULL)
    printed = capsys.readouterr().out
    assert "1 of 3 rows are left out" in printed
    assert "prompts of more than 150 tokens, with tools and system text: 1 (" in printed
    with pytest.raises(ConfigError, match=r"data\.max_prompt_tokens: prompts of more than 150 tokens"):
        await check(load(tmp_path), CheckLevel.FULL)


def test_a_category_column_that_no_held_out_prompt_has_is_refused_with_the_columns_that_exist(tmp_path: Path):
    rows = [{"prompt": "1 + 1?", "answer": "2", "extra_info": {"level": 3}}, {"prompt": "2 + 1?", "answer": "3"}]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"data.validation_files=[{tmp_path / 'held_out.jsonl'}]"]
    assert held_out_prompts(load(tmp_path, *words, "validation.category_column=extra_info.level").config)
    with pytest.raises(ConfigError, match=r"validation\.category_column: .*`levle` \(.*`extra_info`"):
        held_out_prompts(load(tmp_path, *words, "validation.category_column=levle").config)
