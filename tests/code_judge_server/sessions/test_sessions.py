"""Python sessions over HTTP, on real judges of the tiers that hold them."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from judge_process import JudgeProcess, running_judge, wait_until
from session_client import Session
from session_judge import LIMITS, TIERS_AND_USERS, session_judge

MAX_SESSIONS = 3
MAX_SNAPSHOTS = 4


@pytest.fixture(scope="module", params=TIERS_AND_USERS)
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    bounds = ["--max-sessions", str(MAX_SESSIONS), "--max-snapshots", str(MAX_SNAPSHOTS)]
    with session_judge(request.param, tmp_path_factory.mktemp("sessions"), *bounds) as server:
        yield server


def test_a_cell_starts_from_the_state_of_the_previous_one(session: Session):
    assert session.cell("import math\nx = 20")["display"] == []
    assert session.value("x + math.factorial(3)") == "26"
    assert session.value("__name__, _") == "('__main__', 26)"


def test_output_and_input_are_those_of_the_cell(session: Session):
    session.cell("print('first')")
    result = session.cell("import sys; print(input(), 'ä'); print('wrong', file=sys.stderr)", stdin="given\n")
    assert (result["stdout"], result["stderr"]) == ("given ä\n", "wrong\n")
    assert session.value("sys.stdin.read()") == "''"


def test_the_last_expression_is_displayed_as_a_notebook_does(session: Session):
    session.cell("class Rich:\n    def __repr__(self): return 'plain'\n    def _repr_html_(self): return '<b>rich</b>'")
    assert session.cell("Rich()")["display"] == [{"text/plain": "plain", "text/html": "<b>rich</b>"}]
    assert session.cell("Rich();")["display"] == session.cell("None")["display"] == []
    assert session.cell("display(1, 2)\n3")["display"] == [{"text/plain": text} for text in "123"]
    assert session.value("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'"


def test_a_cell_that_raises_leaves_nothing(session: Session):
    session.cell("items = [1]")
    before = session.cell("items")["snapshot"]
    result = session.cell("def fail():\n    items.append(2)\n    raise KeyError('key')\nfail()")
    assert (result["status"], result["exit_code"], result["snapshot"]) == ("runtime_error", 1, before)
    assert (result["error"]["name"], result["error"]["value"]) == ("KeyError", "'key'")
    lines = result["error"]["traceback"].splitlines()
    assert lines[1].endswith("line 4, in <module>")
    assert lines[-2].strip() == "raise KeyError('key')"
    assert session.value("items") == "[1]"
    assert session.cell("def f(:")["error"]["name"] == "SyntaxError"
    assert session.cell("raise SystemExit(3)")["error"]["name"] == "SystemExit"


def test_a_cell_that_dies_leaves_nothing(session: Session):
    session.cell("x = 1")
    assert session.cell("import os; x = 2; os._exit(3)")["exit_code"] == 3
    assert session.cell("import os; x = 2; os.abort()")["signal"] == 6
    assert session.value("x") == "1"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "time_limit_exceeded"),
        ("import time; time.sleep(60)", "time_limit_exceeded"),
        ("while True: print('x' * 1000)", "output_limit_exceeded"),
        ("x = [bytearray(1 << 20) for _ in range(1000)]", "memory_limit_exceeded"),
        ("import os, time\nfor _ in range(20): os.fork() or os.setsid()\ntime.sleep(60)", None),
    ],
    ids=["spin", "sleep", "flood", "memory", "fork bomb"],
)
def test_a_cell_is_held_to_its_limits_and_its_session_lives(session: Session, code: str, status: str | None):
    session.cell("x = 'before'")
    result = session.cell(code, wall_time_s=1 if "sleep" in code else None)
    assert result["status"] == status or (status is None and result["status"] != "accepted")
    assert not result["session_closed"]
    assert session.value("x") == "'before'"


def test_a_rollback_brings_an_old_state_back(session: Session):
    first = session.cell("x = 1")["snapshot"]
    session.cell("x = 2")
    assert session.http.post(f"{session.path}/rollback", json={"snapshot": first}).json()["snapshot"] == first
    assert session.value("x") == "1"
    assert session.http.post(f"{session.path}/rollback", json={"snapshot": 99}).status_code == 404


def test_branches_know_nothing_of_each_other(session: Session):
    root = session.cell("x = [0]")["snapshot"]
    left = session.cell("x.append('left')", from_snapshot=root)["snapshot"]
    assert session.value("x", from_snapshot=root) == "[0]"
    assert session.value("x", from_snapshot=left) == "[0, 'left']"


def test_the_oldest_snapshots_are_dropped_beyond_the_limit(session: Session):
    first = session.cell("x = 0")["snapshot"]
    for _ in range(MAX_SNAPSHOTS):
        session.cell("x += 1")
    assert len(session.http.get(session.path).json()["snapshots"]) == MAX_SNAPSHOTS
    assert session.try_cell("x", from_snapshot=first).status_code == 404
    assert session.value("x") == str(MAX_SNAPSHOTS)


def test_seeded_random_numbers_go_on_from_cell_to_cell(session: Session):
    session.cell("import random, threading, time; random.seed(7); plain = random.Random(7)")
    assert session.value("random.random() == plain.random()") == "True"
    session.cell("threading.Thread(target=time.sleep, args=(60,)).start()")
    assert session.value("random.random() == plain.random()") == "True"


def test_threads_and_processes_end_with_their_cell(session: Session):
    session.cell(
        "import glob, subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)"
    )
    assert session.value("threading.active_count()") == "1"
    commands = "[open(path).read() for path in glob.glob('/proc/[0-9]*/cmdline')]"
    assert session.value(f"any('sleep' in command for command in {commands})") == "False"


def test_files_stay(session: Session):
    session.cell("open('note.txt', 'w').write('kept')")
    session.cell("1 / 0")
    assert session.value("open('note.txt').read()") == "'kept'"
    assert session.value("import os; os.listdir('.')") == "['note.txt']"


def test_files_of_the_session_itself_take_none_of_its_disk(judge: JudgeProcess):
    small = Session(judge, limits={"disk_bytes": 4096})
    assert small.value("1 + 1") == "2"
    small.close()


def test_sessions_do_not_see_each_other(judge: JudgeProcess, session: Session):
    other = Session(judge)
    session.cell("secret = 1; open('/tmp/secret', 'w').write('x')")
    assert other.cell("secret")["error"]["name"] == "NameError"
    assert other.value("import os; os.path.exists('/tmp/secret')") == "False"
    other.close()


def test_cells_that_come_together_run_one_after_the_other(session: Session):
    session.cell("x = 0")
    threads = [
        threading.Thread(target=session.cell, args=("y = x; import time; time.sleep(0.05); x = y + 1",))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.value("x") == "5"


def test_a_cell_takes_a_programs_place(judge: JudgeProcess, session: Session):
    sleeper = threading.Thread(target=session.cell, args=("import time; time.sleep(1)",))
    sleeper.start()
    judge.wait_until_running(1)
    sleeper.join()
    judge.wait_until_running(0)


def test_a_cell_that_kills_its_session_harms_no_other(judge: JudgeProcess, session: Session):
    doomed = Session(judge)
    session.cell("x = 1")
    result = doomed.cell("import os; os.kill(-1, 9)")
    assert (result["status"], result["session_closed"]) == ("runtime_error", True)
    assert doomed.try_cell("1").status_code == 404
    assert session.value("x") == "1"


def test_a_client_that_disconnects_cancels_its_cell(judge: JudgeProcess, session: Session):
    session.cell("x = 1")
    with pytest.raises(httpx.ReadTimeout):
        session.http.post(f"{session.path}/cells", json={"code": "x = 2\nwhile True: pass"}, timeout=0.3)
    judge.wait_until_running(0)
    assert session.value("x") == "1"


def test_the_number_of_sessions_is_bounded_and_closing_one_frees_its_place(judge: JudgeProcess):
    sessions = [Session(judge) for _ in range(MAX_SESSIONS)]
    refused = judge.http.post("/v1/sessions", json={})
    assert (refused.status_code, "Retry-After" in refused.headers) == (429, True)
    for opened in sessions:
        opened.close()
        assert opened.try_cell("1").status_code == 404
    wait_until(lambda: _close_all(judge) == MAX_SESSIONS)


def _close_all(judge: JudgeProcess) -> int:
    """Open as many sessions as there is room for, close them, and return their number."""
    replies = [judge.http.post("/v1/sessions", json={}) for _ in range(MAX_SESSIONS)]
    opened = [reply.json()["session_id"] for reply in replies if reply.status_code == 200]
    for session_id in opened:
        judge.http.delete(f"/v1/sessions/{session_id}")
    return len(opened)


@pytest.mark.slow
def test_an_unused_session_is_closed(tmp_path: Path):
    with running_judge(tmp_path, *LIMITS, "--session-idle-s", "1.5", "--max-sessions", "1", isolation="B") as server:
        session = Session(server)
        session.cell("import time; time.sleep(2)")  # this is use
        assert session.value("1") == "1"
        wait_until(lambda: session.http.get(session.path).status_code == 404)
        wait_until(lambda: server.http.post("/v1/sessions", json={}).status_code == 200)


def test_a_set_of_modules_can_be_named(judge: JudgeProcess):
    bare = Session(judge, preload="bare")
    assert bare.value("import sys; 'numpy' in sys.modules") == "False"
    bare.close()
    for name in ("none such", "none-such"):
        wait_until(lambda name=name: judge.http.post("/v1/sessions", json={"preload": name}).status_code == 400)


def test_a_tier_that_cannot_hold_sessions_says_so(tmp_path: Path):
    with running_judge(tmp_path, *LIMITS, isolation="D") as server:
        reply = server.http.post("/v1/sessions", json={})
        assert (reply.status_code, "tier A or B" in reply.json()["detail"]) == (404, True)


def test_nothing_of_a_session_outlives_its_judge(tmp_path: Path):
    marker = f"left by {tmp_path.name}"
    with running_judge(tmp_path, *LIMITS, isolation="B") as server:
        session = Session(server)
        session.cell(f"import ctypes; ctypes.CDLL(None).prctl(15, {marker[:15]!r}.encode())")
        assert marker[:15] in _process_names()
    wait_until(lambda: marker[:15] not in _process_names())


def _process_names() -> str:
    return subprocess.run(["ps", "-eo", "comm="], capture_output=True, text=True, check=True).stdout
