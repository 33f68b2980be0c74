import io
import logging
import threading
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.observability.logs import aligned, configure_logging, describe_repeats, repeating

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


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})


CELLS = [
    "step    7",
    "accuracy     -",
    "reward 0.479",
    "tool use 0.65",
    "ok 0.83",
    "tokens    15",
    "grad  0.511",
    "in   3.3 s",
]


@pytest.mark.parametrize(("width", "shown"), [(80, [*CELLS[:4], CELLS[-1]]), (120, CELLS), (26, CELLS[-1:])])
def test_a_step_is_one_line_of_as_many_columns_as_the_terminal_has_room_for(
    tmp_path: Path, width: int, shown: list[str]
) -> None:
    console = terminal(width)
    configure_logging(tmp_path, console=console)
    logging.getLogger("agentrl").info("%s", "  ".join(CELLS), extra=aligned(CELLS))
    [line] = written_to(console).splitlines()
    assert line.split(" ", 1)[1].rstrip() == "  ".join(shown)
    assert (tmp_path / "run.log").read_text().endswith("INFO agentrl: " + "  ".join(CELLS) + "\n")


def test_a_terminal_names_the_level_of_warnings_only_and_indents_long_ones() -> None:
    console = terminal(40)
    configure_logging(None, console=console)
    logging.getLogger("agentrl").info("ready")
    logging.getLogger("agentrl").warning("the judge died and was restarted")
    first, second, third = (line.rstrip() for line in written_to(console).splitlines())
    assert first[8:] == " ready"
    assert second[8:] == " WARNING the judge died and was"
    assert third == " " * 17 + "restarted"


def test_a_repeated_warning_is_counted_on_the_console_and_complete_in_the_run_log(tmp_path: Path) -> None:
    console, before = piped_console(), describe_repeats()
    assert "test of repeats" not in before
    configure_logging(tmp_path, console=console)
    for number in range(12):
        extra = repeating("test of repeats", on_console=f"step {number}: 1 try failed")
        logging.getLogger("agentrl").warning("step %d: 1 try failed, such as 4-p3-%d", number, number, extra=extra)
    assert [line.split(" ", 2)[2] for line in written_to(console).splitlines()] == [
        "step 0: 1 try failed",
        "step 9: 1 try failed (10 times so far)",
    ]
    log = (tmp_path / "run.log").read_text().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in log] == [f"4-p3-{number}" for number in range(12)]
    assert "test of repeats (12 times)" in describe_repeats()
