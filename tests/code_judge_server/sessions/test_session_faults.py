"""Cells that are abandoned, forge the session's messages, or leave something behind, on real judges."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from judge_process import JudgeProcess, running_judge, wait_until
from session_client import Session
from session_judge import LIMITS, TIERS_AND_USERS, session_judge

MAX_SESSIONS = 3
MAX_REPLY_CHARS = 5000
IDLE_S = 6
FORGE = """
import json, os, socket
def forge(message):
    for fd in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(fd))
            channel.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except OSError:
            pass
"""


@pytest.fixture(scope="module", params=TIERS_AND_USERS)
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    bounds = ["--max-sessions", str(MAX_SESSIONS), "--max-reply-chars", str(MAX_REPLY_CHARS)]
    bounds += ["--session-idle-s", str(IDLE_S)]
    with session_judge(request.param, tmp_path_factory.mktemp("faults"), *bounds) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deadline", "disconnect"])
def test_the_cell_after_an_abandoned_one_has_its_own_verdict(judge: JudgeProcess, session: Session, how: str):
    session.cell("x = 1")
    for _ in range(3):
        if how == "deadline":
            assert session.cell("while True: pass", deadline_s=1.0)["status"] == "cancelled"
        else:
            with pytest.raises(httpx.ReadTimeout):
                session.http.post(f"{session.path}/cells", json={"code": "while True: pass"}, timeout=0.3)
        result = session.cell("print('honest', x)")
        assert (result["status"], result["stdout"], result["error"]) == ("accepted", "honest 1\n", None)
    judge.wait_until_running(0)


def test_a_cell_that_was_abandoned_at_its_end_leaves_no_snapshot(judge: JudgeProcess, session: Session):
    for milliseconds in range(0, 20, 2):
        session.try_cell("x = 1", deadline_s=0.001 + milliseconds / 1000)
        if session.http.get(session.path).json()["snapshot"] == 0:
            assert session.cell("x")["error"]["name"] == "NameError"
        session.http.post(f"{session.path}/rollback", json={"snapshot": 0})
    judge.wait_until_running(0)


def test_a_cell_has_nothing_of_the_process_that_speaks_to_the_server(session: Session):
    result = session.cell(
        "import os\n"
        "files = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd') if int(fd) > 2]\n"
        "print(sum(os.path.exists(file) and 'socket' in os.readlink(file) for file in files))\n"
        "supervisor = open(f'/proc/{os.getppid()}/stat').read().rpartition(') ')[2].split()[1]\n"
        "try: os.listdir(f'/proc/{supervisor}/fd')\n"
        "except PermissionError: print('closed', supervisor != '0')"
    )
    assert result["stdout"] == "1\nclosed True\n"  # the one socket leads to the supervisor


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "ended", "number": 1, "state": "failed", "exit_code": None, "signal": None, "wall_time_s": 0.1},
        {"ok": True, "pid": 1, "exit_code": 0},
    ],
    ids=["of the server", "of a cell"],
)
def test_a_cell_that_forges_its_end_does_not_outlive_its_session(
    judge: JudgeProcess, session: Session, message: dict[str, object]
):
    name = f"f{time.monotonic_ns()}"[:15]
    spin = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}.encode())\n"
    spin += f"message = {message!r}\n"
    spin += "message.update({'pid': os.getpid()} if 'ok' in message else {})\n"
    spin += "forge(message)\nwhile True: pass"
    session.try_cell(FORGE + spin, cpu_time_s=1, wall_time_s=1)
    wait_until(lambda: name not in _process_names())
    judge.wait_until_running(0)


def test_an_idle_session_lives(session: Session):
    session.cell("x = bytearray(50 << 20)")
    time.sleep(2)
    assert session.value("len(x) >> 20") == "50"


def test_a_forged_report_costs_next_to_nothing(judge: JudgeProcess, session: Session):
    write = (
        "import os\n"
        "files = [int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{{fd}}')]\n"
        "[file] = [fd for fd in files if 'result' in os.readlink(f'/proc/self/fd/{{fd}}')]\n"
        "os.pwrite(file, b'{{\"display\":[' + {item} * {times} + b'{{}}],\"error\":null}}', 0)\n"
        "os._exit(3)"
    )
    many = session.cell(write.format(item="b'{},'", times=2_000_000))
    assert (many["exit_code"], many["display"]) == (3, [])
    item = b'{"text/plain":"' + b"x" * 1000 + b'"},'
    large = session.cell(write.format(item=item, times=100))
    assert sum(len(shown["text/plain"]) for shown in large["display"]) <= MAX_REPLY_CHARS
    assert len(large["display"]) == MAX_REPLY_CHARS // 1000


def test_so_many_values_of_a_cell_are_displayed(session: Session):
    assert len(session.cell("for i in range(3000): display(i % 10)")["display"]) == 1000
    assert session.value("'ä😀{[,' * 1000") == repr("ä😀{[," * 1000)[:MAX_REPLY_CHARS]


@pytest.mark.parametrize(("code", "exit_code"), [("3", 3), ("-1", 255), ("0", 1), ("'text'", 1), ("", 1)])
def test_a_cell_that_exits_has_the_exit_code_of_a_program(session: Session, code: str, exit_code: int):
    result = session.cell(f"raise SystemExit({code})")
    assert (result["status"], result["exit_code"]) == ("runtime_error", exit_code)


@pytest.mark.slow
def test_clients_that_go_away_while_a_session_opens_leave_its_place_free(judge: JudgeProcess):
    address = urlsplit(judge.url)
    request = f"POST /v1/sessions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    request += "Content-Length: 2\r\n\r\n{}"
    for attempt in range(4 * MAX_SESSIONS):
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(request.encode())
            time.sleep(0.005 * attempt)
        time.sleep(0.1)
    wait_until(lambda: _num_free_places(judge) == MAX_SESSIONS)


def _num_free_places(judge: JudgeProcess) -> int:
    replies = [judge.http.post("/v1/sessions", json={}) for _ in range(MAX_SESSIONS)]
    opened = [reply.json()["session_id"] for reply in replies if reply.status_code == 200]
    for session_id in opened:
        judge.http.delete(f"/v1/sessions/{session_id}")
    return len(opened)


def test_the_peak_of_a_cell_is_not_that_of_an_earlier_one(session: Session):
    large = session.cell("import time; x = b'x' * (150 << 20); time.sleep(0.2); del x")
    if large["memory_enforcement"] == "sampled":
        pytest.skip("a sample below the limit counts what processes share in each of them")
    small = session.cell("time.sleep(0.2)")
    assert large["peak_memory_bytes"] > 150 << 20
    assert 0 < small["peak_memory_bytes"] < 100 << 20


@pytest.mark.slow
def test_one_client_leaves_a_session_to_others(tmp_path: Path):
    with running_judge(tmp_path, *LIMITS, "--max-sessions", "6", isolation="B") as server:

        def status_of_opening(client: str) -> int:
            return server.http.post("/v1/sessions", json={}, headers={"Judge-Client": client}).status_code

        assert [status_of_opening("greedy") for _ in range(6)] == [200] * 5 + [429]
        assert status_of_opening("other") == 200


def _process_names() -> str:
    names = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/comm") as comm:
                    names.append(comm.read().strip())
            except OSError:
                continue
    return " ".join(names)
