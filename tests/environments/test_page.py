"""docs/environments.md: its example is checked as a user would check it, and prints what the page shows."""

from pathlib import Path

import pytest
from rich.console import Console

from agentrl.config.load import load_run_config
from agentrl.run.plan import check_plugins
from agentrl.run.preflight.plugins import try_tools_and_reward
from agentrl.run.preflight.report import CheckReport, CheckSubject
from agentrl.runners.check import read_data
from tests.test_docs import ROOT, read_block

PAGE = ROOT / "docs" / "environments.md"
EXAMPLE = ROOT / "examples" / "guess_number"


async def test_the_check_of_the_pages_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "my_game.py").write_text(read_block(PAGE, "my_game.py"))
    (tmp_path / "my_run.yaml").write_text(read_block(PAGE, "my_run.yaml"))
    (tmp_path / "train.jsonl").write_text('{"prompt": "Guess my number.", "answer": "13"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = ["data.train_files=[train.jsonl]", f"model.path={EXAMPLE}/policy", f"run.dir={tmp_path}/run"]
    overrides += ["data.max_prompt_tokens=64", "rollout.prompts_per_step=1", "checkpoint.every_steps=100"]
    loaded, report = load_run_config(str(tmp_path / "my_run.yaml"), overrides), CheckReport(Console())
    await try_tools_and_reward(read_data(CheckSubject(loaded=loaded, tools=check_plugins(loaded)), report), report)
    printed = capsys.readouterr().out
    shown = [
        line.strip() for line in PAGE.read_text().splitlines() if line.startswith(("    environment", "    reward"))
    ]
    assert len(shown) == 2
    for line in shown:
        assert line in printed
