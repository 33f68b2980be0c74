"""Cells that wait for the one before them: their deadline runs, their waiting is told, and their session does not expire."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from judge_process import JudgeProcess
from session_client import Session
from session_judge import TIERS_AND_USERS, session_judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with session_judge(TIERS_AND_USERS[0], tmp_path_factory.mktemp("sessions"), "--session-idle-s", "1") as server:
        yield server


def running_cell(session: Session, code: str) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """Start a cell in the background, and wait until it runs."""
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(session.cell(code)))
    thread.start()
    time.sleep(0.3)
    return thread, results


def test_the_deadline_of_a_cell_runs_while_it_waits_for_the_one_before(session: Session) -> None:
    thread, _ = running_cell(session, "import time; time.sleep(1.2)")
    started_at = time.monotonic()
    late = session.cell("1", deadline_s=0.3)
    assert late["status"] == "queue_timeout"
    assert late["queue_time_s"] == pytest.approx(0.3, abs=0.2)
    assert time.monotonic() - started_at < 0.7
    thread.join()


def test_the_time_that_a_cell_waits_for_the_one_before_is_queue_time(session: Session) -> None:
    thread, _ = running_cell(session, "import time; time.sleep(1.2)")
    waited = session.cell("1")
    assert waited["status"] == "accepted"
    assert 0.4 < waited["queue_time_s"] < 1.5
    thread.join()


def test_a_session_does_not_expire_while_a_cell_runs_whatever_else_is_asked_of_it(session: Session) -> None:
    start = session.cell("x = 1")["snapshot"]
    thread, results = running_cell(session, "import time; time.sleep(2.5); print('done')")
    assert session.http.post(f"{session.path}/rollback", json={"snapshot": start}).status_code == 200
    assert session.cell("1", deadline_s=0.2)["status"] == "queue_timeout"
    thread.join()
    assert (results[0]["status"], results[0]["stdout"]) == ("accepted", "done\n")
