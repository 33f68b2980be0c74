"""Cells that wait for the previous one: their deadline runs, their wait is reported, and their session does not expire."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from judge_process import JudgeProcess
from session_client import Session
from session_judge import TIERS_AND_USERS, session_judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with session_judge(TIERS_AND_USERS[0], tmp_path_factory.mktemp("sessions"), "--session-idle-s", "1.5") as server:
        yield server


def running_cell(judge: JudgeProcess, session: Session, code: str) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """Start the only cell of the judge in the background, and wait until it runs."""
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(session.cell(code)))
    thread.start()
    judge.wait_until_running(1)
    return thread, results


def test_the_deadline_of_a_cell_runs_while_it_waits_for_the_one_before(judge: JudgeProcess, session: Session) -> None:
    thread, results = running_cell(judge, session, "import time; time.sleep(2)")
    late = session.cell("1", deadline_s=0.3)
    assert not results
    assert late["status"] == "queue_timeout"
    assert 0.299 <= late["queue_time_s"] < 2  # the loop's timers count whole milliseconds
    thread.join()


def test_the_time_that_a_cell_waits_for_the_one_before_is_queue_time(judge: JudgeProcess, session: Session) -> None:
    thread, _ = running_cell(judge, session, "import time; time.sleep(1.5)")
    waited = session.cell("1")
    assert waited["status"] == "accepted"
    assert waited["queue_time_s"] > 0.2
    thread.join()


def test_a_session_does_not_expire_while_a_cell_runs(judge: JudgeProcess, session: Session) -> None:
    start = session.cell("x = 1")["snapshot"]
    thread, results = running_cell(judge, session, "import time; time.sleep(2.5); print('done')")
    assert session.http.post(f"{session.path}/rollback", json={"snapshot": start}).status_code == 200
    assert session.cell("1", deadline_s=0.2)["status"] == "queue_timeout"
    thread.join()
    assert (results[0]["status"], results[0]["stdout"]) == ("accepted", "done\n")
