"""What is left on the terminal and in the log of an error that ends a command."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.errors import EngineError
from agentrl.observability.logs import configure_logging
from agentrl.runners.command_line import EXIT_FAILED, run_command

NOTE = "raised in actor 1: ray::ModelWorker.update()\n  File model.py, line 3, in update\nEngineError: ours"


@pytest.mark.usefixtures("restored_logging")
def test_an_error_of_ours_says_where_it_was_raised_and_the_log_has_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    configure_logging(tmp_path, console=Console())

    async def command() -> None:
        await asyncio.sleep(0)
        error = EngineError("ours")
        error.add_note(NOTE)
        raise error

    assert run_command(command) == EXIT_FAILED
    shown = capsys.readouterr()
    assert shown.err == "error: ours (raised in actor 1; see run.log)\n"
    assert shown.out == ""
    assert "line 3, in update" in (tmp_path / "run.log").read_text()
