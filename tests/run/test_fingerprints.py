"""Fingerprints of the files and models that a run reads."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.fingerprints import digest_of, inputs_of
from agentrl.run.plan import prepare_evaluation

EXAMPLES = SHIPPED_FOLDER / "examples" / "arithmetic"
LARGE_BYTES = 100 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "policy", tmp_path / "model"))


def digest(model: Path) -> str:
    return digest_of(model, key="model.path")


def change(file: Path, position: int, *, to: bytes = b"changed") -> None:
    with file.open("r+b") as content:
        content.seek(position)
        content.write(to)


def test_training_reads_all_its_models_and_an_evaluation_its_policy():
    config = load_run_config("configs/demo_ppo.yaml", ["critic.path=examples/arithmetic/policy"]).config
    models = {"model.path": EXAMPLES / "policy", "critic.path": EXAMPLES / "policy"}
    models |= {"reward.model.path": EXAMPLES / "reward_model"}
    trained, measured = inputs_of(config, trains=True), inputs_of(config, trains=False)
    assert {key: path for key, path in trained.items() if key.endswith(".path")} == models
    assert trained.keys() - measured.keys() == {"critic.path", "reward.model.path"}
    assert trained["data.train_files[0]"] == EXAMPLES / "train.jsonl"


def test_a_chat_template_of_the_config_is_read():
    word = "model.chat_template=configs/templates/chatml_hermes.jinja"
    inputs = inputs_of(load_run_config("configs/demo.yaml", [word]).config, trains=True)
    assert inputs["model.chat_template"] == SHIPPED_FOLDER / "configs" / "templates" / "chatml_hermes.jinja"


def test_a_model_on_a_hub_has_no_digest():
    config = load_run_config("configs/demo.yaml", ["model.path=some-group/some-model"]).config
    assert "model.path" not in inputs_of(config, trains=True)


def test_where_a_model_is_when_it_was_written_and_what_is_written_about_it_do_not_count(model: Path, tmp_path: Path):
    before = digest(model)
    os.utime(model / "model.safetensors", (1, 1))
    (model / "README.md").write_text("a page")
    (model / "adapter").mkdir()
    assert digest(Path(shutil.move(model, tmp_path / "elsewhere"))) == before


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "generation_config.json"]
)
def test_each_file_that_makes_a_model_counts(model: Path, name: str):
    before = digest(model)
    change(model / name, 100)
    changed = digest(model)
    (model / name).unlink()
    assert len({before, changed, digest(model)}) == 3


@pytest.mark.parametrize("position", [0, 4 << 20, 52 << 20, LARGE_BYTES - 7, LARGE_BYTES])
def test_the_ends_the_samples_and_the_size_of_a_large_file_count(model: Path, position: int):
    large = model / "pytorch_model.bin"
    large.touch()
    os.truncate(large, LARGE_BYTES)
    before = digest(model)
    change(large, position)
    assert digest(model) != before


def test_a_change_of_nearly_all_weights_of_a_large_file_is_seen(model: Path):
    """A change as by an update, except at the ends of the file, which have their own test."""
    large = model / "pytorch_model.bin"
    large.touch()
    os.truncate(large, LARGE_BYTES)
    before = digest(model)
    change(large, 2 << 20, to=b"x" * (LARGE_BYTES - (4 << 20)))
    assert digest(model) != before


def test_a_model_that_cannot_be_read_is_one_clear_line(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"model\.path: .*/absent cannot be read: No such file .*; fetch it again"):
        digest(tmp_path / "absent")


def test_the_names_of_the_files_of_a_model_count(model: Path):
    before = digest(model)
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    assert digest(model) != before


def test_a_file_of_weights_of_a_few_mib_is_read_whole(model: Path):
    weights = model / "pytorch_model.bin"
    weights.touch()
    os.truncate(weights, 8 << 20)
    before = digest(model)
    change(weights, (4 << 20) + (1 << 19), to=b"between two samples of a larger file")
    assert digest(model) != before


def test_the_data_of_every_stage_are_inputs():
    own = "stages=[{num_steps: 1}, {num_steps: 1, train_files: [examples/arithmetic/validation.jsonl]}]"
    config = load_run_config("configs/demo.yaml", ["run.num_steps=2", own]).config
    assert inputs_of(config, trains=True)["stages[1].train_files[0]"] == EXAMPLES / "validation.jsonl"


REWARD = """
from edited_helper import LIMIT


class Reward:
    def __init__(self, config): ...
    async def start(self): ...
    async def score(self, prompt, turns, *, deadline): return LIMIT
    async def aclose(self): ...
"""


def test_an_edit_of_a_reward_or_of_a_module_that_it_imports_is_refused_unless_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "edited_reward.py").write_text(REWARD)
    (tmp_path / "edited_helper.py").write_text("LIMIT = 1.0")
    (tmp_path / "run.yaml").write_text("reward: {class_name: edited_reward.Reward}\n")

    def start(*overrides: str) -> None:
        words = [f"run.dir={tmp_path / 'run'}", f"model.path={EXAMPLES / 'policy'}", *overrides]
        words += [
            f"data.validation_files=[{EXAMPLES / 'validation.jsonl'}]",
            "rollout.max_response_tokens=256",
            "data.max_prompt_tokens=512",
        ]
        plan = prepare_evaluation(load_run_config(str(tmp_path / "run.yaml"), words, purpose=Purpose.EVALUATION))
        plan.directory.finish({})
        plan.directory.close()

    start()
    start()
    (tmp_path / "edited_helper.py").write_text("LIMIT = 2.0")
    with pytest.raises(ConfigError, match=r"other content from `module edited_helper` .*accept_code_changes=true"):
        start()
    start("run.accept_code_changes=true")
    start()  # what was accepted is the run's code now
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "edited_helper.py").write_text("LIMIT = 3.0")
    start()  # which measures from the beginning
