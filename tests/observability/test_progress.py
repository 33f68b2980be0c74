import io
import logging
import re
import time

import pytest
from rich.console import Console

from agentrl.observability.logs import configure_logging
from agentrl.observability.progress import RunProgress


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=110, _environ={"TERM": "xterm"})


@pytest.fixture
def logging_to_terminal(terminal: Console, restored_logging: None) -> None:
    configure_logging(None, console=terminal)


def screen_text(console: Console) -> str:
    """Return what was written, without colours and cursor movements."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def wait_until_shown(console: Console, text: str) -> None:
    """Give the bar, which is redrawn four times a second, the time to show `text`."""
    give_up_at = time.monotonic() + 60.0
    while text not in screen_text(console):
        assert time.monotonic() < give_up_at, f"not shown: {text}"
        time.sleep(0.02)


def run_one_step(console: Console) -> None:
    with RunProgress(console, num_steps=40) as progress:
        progress.resume(num_steps_done=12)
        progress.start_rollout("step 13 rollout", num_trajectories=4)
        for _ in range(3):
            progress.finish_trajectory(num_tokens=100)
        if console.is_terminal:
            wait_until_shown(console, "3/4 trajectories")
        logging.getLogger("agentrl").warning("one call was retried")
        progress.start_phase("step 13 update")
        progress.finish_step()


def test_a_terminal_shows_steps_trajectories_and_phases(terminal: Console, logging_to_terminal: None) -> None:
    run_one_step(terminal)
    text = screen_text(terminal)
    assert "12/40 steps" in text
    assert re.search(r"step 13 rollout .*3/4 trajectories · [\d,]+ tokens/s", text)
    assert "step 13 update" in text
    assert "13/40 steps" in text


def test_a_long_rollout_is_logged_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    monkeypatch.setattr("agentrl.observability.progress.time.monotonic", lambda: now)
    with RunProgress(Console(file=io.StringIO()), num_steps=40) as progress:
        progress.start_rollout("step 0 evaluation", num_trajectories=1000)
        for _ in range(200):
            now += 1.0
            progress.finish_trajectory(num_tokens=50)
    assert [record.getMessage() for record in caplog.records] == [
        f"step 0 evaluation: {number}/1,000 trajectories, 50 tokens/s" for number in (10, 70, 130, 190)
    ]


def test_log_records_have_lines_of_their_own_above_the_bar(terminal: Console, logging_to_terminal: None) -> None:
    run_one_step(terminal)
    (line,) = [line for line in screen_text(terminal).splitlines() if "one call was retried" in line]
    assert "━" not in line
    assert line.rstrip().endswith("one call was retried")


def test_nothing_is_written_where_the_output_is_no_terminal() -> None:
    console = Console(file=io.StringIO())
    run_one_step(console)
    assert screen_text(console) == ""


def test_the_bar_is_gone_after_an_exception_and_the_cursor_is_back(terminal: Console) -> None:
    with pytest.raises(KeyboardInterrupt), RunProgress(terminal, num_steps=1):
        raise KeyboardInterrupt
    assert isinstance(terminal.file, io.StringIO)
    written = terminal.file.getvalue()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


def test_counting_before_a_rollout_is_a_bug_that_is_named(terminal: Console) -> None:
    with (
        RunProgress(terminal, num_steps=1) as progress,
        pytest.raises(RuntimeError, match="call `start_rollout` first"),
    ):
        progress.finish_trajectory(num_tokens=1)
