"""Values that a config may leave out: files by a pattern, and the number of kept trajectories."""

from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError


def load(folder: Path, *words: str):
    file = folder / "run.yaml"
    file.write_text("model: {path: examples/arithmetic/policy}\ndata: {train_files: ['data/*.jsonl']}")
    return load_run_config(str(file), words).config


def write(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")
    return [str(folder / name) for name in names]


def test_a_pattern_is_all_files_that_it_matches_in_sorted_order(tmp_path: Path):
    b, a, _, deep = write(tmp_path, "data/b.jsonl", "data/a.jsonl", "data/c.parquet", "data/more/d.jsonl")
    config = load(
        tmp_path, "data.validation_files=['data/**/*.jsonl']", f"stages=[{{num_steps: 5, train_files: ['{a}']}}]"
    )
    assert config.data.train_files == [a, b]
    assert config.data.validation_files == [a, b, deep]
    assert config.stages[0].train_files == [a]
    assert load(tmp_path, f"data.train_files=['{tmp_path}/data/[ab].jsonl']").data.train_files == [a, b]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path):
    [odd, _] = write(tmp_path, "data/part[1].jsonl", "data/part1.jsonl")
    assert load(tmp_path, "data.train_files=['data/part[1].jsonl']").data.train_files == [odd]


@pytest.mark.parametrize("key", ["data.train_files", "data.validation_files", r"stages\[0\]\.train_files"])
def test_a_pattern_that_matches_nothing_is_an_error_with_its_key(tmp_path: Path, key: str):
    write(tmp_path, "data/a.jsonl")
    words = {
        "data.train_files": "data.train_files=['x/*.parquet']",
        "data.validation_files": "data.validation_files=['x/*.parquet']",
    }
    word = words.get(key, "stages=[{num_steps: 1, train_files: ['x/*.parquet']}]")
    with pytest.raises(
        ConfigError,
        match=rf"command line: `{key}` holds `x/\*\.parquet`, which matches no file, in .*Generate the files",
    ):
        load(tmp_path, word)


@pytest.mark.parametrize(("samples", "keep"), [(4, 2), (32, 16), (2, 2), (3, 2), (9, 4)])
def test_half_of_the_trajectories_are_kept_where_no_number_is_given(tmp_path: Path, samples: int, keep: int):
    write(tmp_path, "data/a.jsonl")
    assert load(tmp_path, f"rollout.samples_per_prompt={samples}").algorithm.selection.keep == keep
    assert (
        load(tmp_path, f"rollout.samples_per_prompt={samples}", "algorithm.selection.keep=2").algorithm.selection.keep
        == 2
    )
    with pytest.raises(ConfigError, match=r"`algorithm.selection.keep` is 64, more than .* leave it out to keep half"):
        load(tmp_path, "algorithm.selection.keep=64")
