"""Names of models on a hub, without a network."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.sft_load import load_sft_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.plan import prepare, prepare_evaluation
from agentrl.run.preflight.models.folders import check_models
from agentrl.run.sft.run import prepare as prepare_warm_start
from agentrl.runners.export import export

DEMO = str(SHIPPED_FOLDER / "configs" / "demo.yaml")
POLICY = SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"
MODEL = "model.path=some-owner/some-model"
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(("variables", "reason"), [(NO_HUB, "refused"), (OFFLINE, "`HF_HUB_OFFLINE` is set")])
def test_without_a_network_the_name_of_a_model_is_refused_in_one_line_at_once(variables: dict[str, str], reason: str):
    code = (
        "import time; from agentrl.errors import ConfigError\n"
        "from agentrl.run.preflight.models.folders import check_model_path\n"
        "begun = time.monotonic()\n"
        "try: check_model_path('some-owner/some-model')\n"
        "except ConfigError as error: print(f'{time.monotonic() - begun:.1f} {error}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **variables})
    took_s, _, message = done.stdout.strip().partition(" ")
    assert float(took_s) < 10, "the libraries would retry for most of a minute"
    assert message.startswith("model.path: `some-owner/some-model` is no folder"), done.stderr
    assert reason in message
    assert len(message.splitlines()) == 1


COMMANDS: dict[str, Callable[[list[str]], object]] = {
    "train": lambda words: prepare(load_run_config(DEMO, words)),
    "evaluate": lambda words: prepare_evaluation(load_run_config(DEMO, words, purpose=Purpose.EVALUATION)),
    "export": lambda words: export(load_run_config(DEMO, words, purpose=Purpose.EXPORT).config),
    "sft": lambda words: prepare_warm_start(
        load_sft_config(str(SHIPPED_FOLDER / "examples/arithmetic/sft.yaml"), words[:1])
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_asks_for_the_model_first(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^model\.path: `some-owner/some-model` is no folder"):
        COMMANDS[command]([MODEL, f"run.dir={tmp_path / 'run'}"])


def cache_policy(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Path:
    """Put the settings of the demo's policy into the cache of the hub, as `some-owner/some-model`."""
    snapshot = folder / "hub" / "models--some-owner--some-model" / "snapshots" / "0"
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    snapshot.mkdir(parents=True)
    known = json.loads((POLICY / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(known | settings))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    return snapshot


def test_a_model_on_a_hub_is_not_fetched_to_compare_its_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cache_policy(tmp_path, monkeypatch)
    check_models(load_run_config(DEMO, ["algorithm.advantage=gae", "critic.path=some-owner/some-model"]).config)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_positions_of_a_model_on_the_hub_are_read_before_anything_starts(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    snapshot = cache_policy(
        tmp_path, monkeypatch, rope_scaling={"type": "longrope"}, original_max_position_embeddings=500
    )
    shutil.copy2(POLICY / "tokenizer.json", snapshot)
    with pytest.raises(ConfigError, match=r"^model\.path: some-owner/some-model has 500 positions .* may have 512"):
        COMMANDS[command]([MODEL, f"run.dir={tmp_path / 'run'}"])
