"""URLs of stores are told from folders of this machine before anything is written."""

from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.sft_load import load_sft_config
from agentrl.errors import ConfigError


@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/run",
        "file:///tmp/run",
        "simplecache::s3://bucket/run",
    ],
)
def test_a_run_lives_in_a_folder_of_this_machine_and_not_in_a_store(place: str):
    with pytest.raises(
        ConfigError,
        match=rf"^command line: `run.dir` is '{place}', a URL; .* `checkpoint.dir` may be a store",
    ):
        load_run_config("configs/demo.yaml", [f"run.dir={place}"])


def test_a_warm_start_is_written_into_a_folder_of_this_machine():
    with pytest.raises(ConfigError, match=r"`output_dir` is 's3://bucket/policy', a URL"):
        load_sft_config("examples/arithmetic/sft.yaml", ["output_dir=s3://bucket/policy"])


def test_folders_with_a_colon_and_urls_of_stores_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = str(Path("configs/demo.yaml").resolve())
    monkeypatch.chdir(tmp_path)
    for given, place in {
        "./demo:2": str(tmp_path / "demo:2"),
        "runs/12:30": str(tmp_path / "runs" / "12:30"),
        "C:/runs": str(tmp_path / "C:" / "runs"),
        "s3://bucket/run": "s3://bucket/run",
    }.items():
        assert load_run_config(config, [f"checkpoint.dir={given}"]).config.checkpoint.dir == place
    assert load_run_config(config, ["run.dir=demo:2"]).config.run.dir == str(tmp_path / "demo:2")
