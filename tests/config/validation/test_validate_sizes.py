import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.sft_load import load_sft_config
from agentrl.data.rows import read_rows
from agentrl.errors import ConfigError
from agentrl.run.preflight.models.folders import check_model_path
from agentrl.tools.loader import load_tool_file
from tests.config.small_config import MINIMAL, refused


@pytest.mark.parametrize("rate", ["1.0e+6", "1.0", "-1.0e-6"])
def test_a_learning_rate_that_nobody_means_is_refused(config_file: Path, tmp_path: Path, rate: str):
    for key in ("actor.learning_rate", "critic.learning_rate"):
        assert f"`{key}` is {float(rate)}, and must be " in refused(config_file, f"{key}={rate}")
    sft = tmp_path / "sft.yaml"
    sft.write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"`training\.learning_rate` is .*, and must be "):
        load_sft_config(str(sft), [f"training.learning_rate={rate}"])


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (["judge.hosts=['127.0.0.1:0']"], "judge.hosts[0]"),
        (
            ["rollout.engine=openai", "rollout.openai.base_urls=['http://127.0.0.1:0/v1']"],
            "rollout.openai.base_urls[0]",
        ),
    ],
)
def test_port_0_is_refused_where_somebody_is_to_be_asked(config_file: Path, address: list[str], key: str):
    assert f"`{key}` is " in refused(config_file, *address)


@pytest.mark.parametrize("key", ["run.dir", "model.path", "critic.path", "checkpoint.dir", "tool_config_path"])
def test_an_empty_name_is_refused(config_file: Path, key: str):
    assert f"`{key}` is empty" in refused(config_file, f"{key}=''")


def test_a_number_too_long_to_be_read_is_refused(config_file: Path, tmp_path: Path):
    digits = "9" * 5000
    assert "Exceeds the limit" in refused(config_file, f"run.num_steps={digits}")
    config_file.write_text(f"run: {{num_steps: {digits}}}")
    assert refused(config_file).startswith("small.yaml: not valid YAML: Exceeds the limit")
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"tools: [{{class_name: a.B, config: {{x: {digits}}}}}]")
    with pytest.raises(ConfigError, match=r"tools\.yaml: not valid YAML: Exceeds the limit"):
        load_tool_file(tools)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Have file permissions count for root, too."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_files_in_a_folder_that_may_not_be_entered_are_refused_by_name():
    with tempfile.TemporaryDirectory() as open_folder:
        os.chmod(open_folder, 0o755)
        closed, file = Path(open_folder, "closed"), Path(open_folder, "small.yaml")
        closed.mkdir()
        (closed / "config.json").write_text("{}")
        (closed / "small.yaml").write_text(MINIMAL)
        (closed / "train.jsonl").write_text("{}")
        file.write_text(MINIMAL)
        closed.chmod(0o000)
        try:
            with as_ordinary_user():
                assert "no such file" in refused(closed / "small.yaml")
                config = load_run_config(
                    str(file), [f"model.path={closed}", f"data.train_files=[{closed}/train.jsonl]"]
                )
                with pytest.raises(ConfigError, match=r"closed has no config\.json and no tokenizer\.json"):
                    check_model_path(config.config.model.path)
                with pytest.raises(ConfigError, match=r"train\.jsonl: cannot be read: Permission denied"):
                    list(read_rows(Path(config.config.data.train_files[0])))
        finally:
            closed.chmod(0o700)
