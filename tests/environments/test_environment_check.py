"""`--check` with an environment, as a user of docs/environments.md would run it."""

from pathlib import Path

import pytest
from rich.console import Console

from agentrl.config.load import load_run_config
from agentrl.errors import UnexplainedError
from agentrl.run.fingerprints import CODE, code_of_user
from agentrl.run.plan import check_plugins
from agentrl.run.preflight.check import read_data
from agentrl.run.preflight.plugins import try_tools_and_reward
from agentrl.run.preflight.report import CheckReport, CheckSubject
from tests.test_docs import ROOT, read_block

PAGE = ROOT / "docs" / "environments.md"
POLICY = ROOT / "examples" / "guess_number" / "policy"


async def try_out(folder: Path, *overrides: str) -> None:
    (folder / "my_run.yaml").write_text(read_block(PAGE, "my_run.yaml"))
    (folder / "train.jsonl").write_text('{"prompt": "Guess my number.", "answer": "13"}\n')
    given = ["data.train_files=[train.jsonl]", f"model.path={POLICY}", "data.max_prompt_tokens=64", *overrides]
    loaded, report = load_run_config(str(folder / "my_run.yaml"), given), CheckReport(Console())
    await try_tools_and_reward(read_data(CheckSubject(loaded=loaded, tools=check_plugins(loaded)), report), report)


async def test_the_check_of_the_pages_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "my_game.py").write_text(read_block(PAGE, "my_game.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    await try_out(tmp_path)
    shown = [
        line.strip() for line in PAGE.read_text().splitlines() if line.startswith(("    environment", "    reward"))
    ]
    assert len(shown) == 2
    printed = capsys.readouterr().out
    for line in shown:
        assert line in printed
    # Its code is compared when the run resumes.
    assert code_of_user()[f"{CODE}my_game"] == tmp_path / "my_game.py"


def odd(answers: str) -> list[str]:
    config = f"agent_loop.environment_config={{answers: {answers}}}"
    return ["agent_loop.environment=tests.environments.games.Odd", config]


async def test_an_environment_that_raises_is_refused_with_its_line(tmp_path: Path):
    with pytest.raises(
        UnexplainedError, match=r"environment `tests.environments.games.Odd`: `observe` raised SystemExit at games.py:"
    ):
        await try_out(tmp_path, *odd("stop"))


async def test_an_environment_that_refuses_the_first_row_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    await try_out(tmp_path, *odd("refuse"))
    assert "the row has no board; in a run that loses the trajectory" in capsys.readouterr().out
