"""The table of presets in `docs/algorithms.md`, read as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config.load import load_run_config
from agentrl.config.schema.algorithm import AlgorithmSection

ROOT = Path(__file__).resolve().parents[2]
TABLE = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "algorithms.md").read_text().split("\n## ")[1], re.M
)[1:]


def preset(cell: str) -> dict[str, Any]:
    """The keys that a row of the table names."""
    named = [yaml.safe_load(code) for code in re.findall(r"`([^`]+)`", cell)]
    return {key: value for code in named if isinstance(code, dict) for key, value in code.items()}


def loaded(tmp_path: Path, name: str) -> AlgorithmSection:
    demo = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    keys = preset(dict(TABLE)[name])
    keys = preset(dict(TABLE)["REINFORCE++"]) | keys if name == "PPO" else keys
    demo["algorithm"] = {"selection": demo["algorithm"]["selection"]} | keys
    file = tmp_path / "preset.yaml"
    file.write_text(yaml.safe_dump(demo))
    return load_run_config(str(file)).config.algorithm


@pytest.mark.parametrize("name", dict(TABLE))
def test_every_preset_of_the_docs_is_accepted(tmp_path: Path, name: str):
    assert isinstance(loaded(tmp_path, name), AlgorithmSection)


def test_cispo_has_no_lower_bound(tmp_path: Path):
    assert loaded(tmp_path, "CISPO").clip_ratio_low == 1.0
