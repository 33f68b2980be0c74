"""A session that ends unexpectedly gives the reason, in the log and to the caller of the cell."""

import os
import signal
from pathlib import Path

import pytest
from jail_tiers import NAMESPACE_TIERS
from judge_process import WITHOUT_MODULES, running_judge, wait_until
from session_client import Session

KILL_ALL = "import os, signal\nos.kill(-1, signal.SIGKILL)"


def test_the_reason_of_a_sessions_end_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = ["--num-slots", "2", "--max-sessions", "2", *WITHOUT_MODULES]
    with running_judge(tmp_path, *settings, isolation=NAMESPACE_TIERS[0], stderr_to=log) as judge:
        killed, closed = Session(judge), Session(judge)
        assert killed.cell("x = 1")["status"] == "accepted"
        closed.close()
        result = killed.cell(KILL_ALL)
        name = killed.path.rpartition("/")[2]
        assert (result["session_closed"], result["status"]) == (True, "runtime_error")
        assert f"session `{name}`: its processes have ended: " in result["stderr"]
        wait_until(lambda: f"session {name}: its processes have ended: " in log.read_text(), timeout_s=60)
        (line,) = [line for line in log.read_text().splitlines() if f"session {name}" in line]
        assert f"signal {int(signal.SIGKILL)}" in line
        assert closed.path.rpartition("/")[2] not in log.read_text(), "a session that was closed is no news"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees which processes are below the jail's")
def test_a_killed_slot_is_reported_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = ["--num-slots", "1", "--spare-slots", "0", "--max-sessions", "1", *WITHOUT_MODULES]
    with running_judge(tmp_path, *settings, isolation=NAMESPACE_TIERS[0], stderr_to=log) as judge:
        session = Session(judge)
        assert session.value("1") == "1"
        slots = [pid for pid in below(judge.process.pid) if is_slot_with_job(pid, judge.process.pid)]
        assert len(slots) == 1
        os.kill(slots[0], signal.SIGKILL)
        wait_until(lambda: "its processes have ended: " in log.read_text(), timeout_s=60)
    (line,) = [line for line in log.read_text().splitlines() if "its processes have ended" in line]
    assert "its slot was killed" in line or "slot: " in line


def below(pid: int) -> list[int]:
    """Return all processes below one."""
    pids = children(pid)
    for child in pids:
        pids += children(child)
    return pids


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_slot_with_job(pid: int, server: int) -> bool:
    """Return whether a process of the jail has a child that is the first process of a namespace."""
    inits = [child for child in children(pid) if namespace(child) != namespace(pid) and first_of_namespace(child)]
    return namespace(pid) != namespace(server) and bool(inits)


def first_of_namespace(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")) == "1"


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")
