import io
import logging
import threading
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.observability.logs import configure_logging

pytestmark = pytest.mark.usefixtures("restored_logging")


def piped_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def written_to(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_records_go_to_the_console_and_to_the_run_log(tmp_path: Path) -> None:
    console = piped_console()
    configure_logging(tmp_path / "run", console=console)
    logging.getLogger("agentrl.judge").info("%d calls retried", 3)
    assert written_to(console).endswith("INFO    3 calls retried\n")
    assert (tmp_path / "run" / "run.log").read_text().endswith("INFO agentrl.judge: 3 calls retried\n")


def test_a_resumed_run_appends_to_its_log(tmp_path: Path) -> None:
    for message in ("first", "second"):
        configure_logging(tmp_path, console=piped_console())
        logging.getLogger("agentrl").info(message)
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["first", "second"]


def test_other_packages_are_heard_from_warning_on(tmp_path: Path) -> None:
    console = piped_console()
    configure_logging(None, console=console)
    logging.getLogger("some_package").info("chatter")
    logging.getLogger("some_package").warning("trouble")
    assert "chatter" not in written_to(console)
    assert "trouble" in written_to(console)


def test_what_a_trackers_library_logs_is_only_in_the_file(tmp_path: Path) -> None:
    console = piped_console()
    configure_logging(tmp_path, console=console)
    loggers = [logging.getLogger(name) for name in ("urllib3", "agentrl")]
    thread = threading.Thread(
        target=lambda: [logger.warning("by %s", logger.name) for logger in loggers], name="sink-x"
    )
    thread.start()
    thread.join()
    assert "by urllib3" not in written_to(console)
    assert "by agentrl" in written_to(console)
    assert "by urllib3" in (tmp_path / "run.log").read_text()


def test_long_lines_are_not_wrapped_where_the_output_is_no_terminal(tmp_path: Path) -> None:
    console = piped_console()
    configure_logging(None, console=console)
    logging.getLogger("agentrl").info("x" * 200)
    assert "x" * 200 in written_to(console)


def test_brackets_in_a_message_are_text_and_not_markup_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})
    configure_logging(None, console=console)
    logging.getLogger("agentrl").warning("answer was [bold]5[/bold]")
    assert "[bold]5[/bold]" in written_to(console)
