"""Launcher, zygotes and slots: they start, fail and end, and leave nothing behind."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from jail_driver import Jail, jail
from jail_tiers import EVERY_TIER, NAMESPACE_TIERS
from judge_process import wait_until

from code_judge_server.jail import protocol
from code_judge_server.jail.launch.launcher import Launcher, _Zygote
from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.sandbox import process_tree
from code_judge_server.schemas import IsolationTier
from tests.processes import still_running


@pytest.fixture(params=EVERY_TIER)
def started(request: pytest.FixtureRequest) -> Iterator[Jail]:
    """A jail that the test may end."""
    with jail(request.param) as running:
        yield running


@pytest.fixture(scope="module", params=EVERY_TIER)
def lasting(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param) as running:
        yield running


@pytest.fixture
def kept(lasting: Jail) -> Jail:
    """A jail whose launcher stays for the next test, with new slots."""
    lasting.forget_slots()
    return lasting


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def names_below(pid: int) -> list[str]:
    names = []
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            names.append(process.name())
    return names


def test_pids_are_those_that_the_server_sees(kept: Jail):
    slot = kept.slot()
    assert slot.pid in {process.pid for process in descendants(kept.process.pid)}


@pytest.mark.parametrize("how", ["closed socket", "killed launcher"])
def test_everything_ends_with_the_launcher(started: Jail, how: str):
    slot = started.slot()
    message = {"argv": ["/bin/sleep", "1000"], "interpret": False, "files": [], "collect": 0, "collect_bytes": 0}
    limits = {"cpu_time_s": 10, "memory_bytes": 2**28, "max_tasks": 10, "disk_bytes": 2**20}
    with open("/dev/null", "r+b") as null:
        protocol.send(slot.end, {"kind": "job", **message, "limits": limits}, (null.fileno(),) * 4)
    wait_until(lambda: "sleep" in names_below(started.process.pid))
    below = descendants(started.process.pid)
    assert len(below) >= 3
    if how == "closed socket":
        started.end.close()
    else:
        started.process.kill()
    assert not still_running(below)


def test_no_process_group_or_folder_is_left():
    for tier in EVERY_TIER:
        with jail(tier) as running:
            running.run_python("print(1)")
            below = descendants(running.process.pid)
            groups = running.plan.cgroups
            folders = [] if groups is None else list(groups.folders.values())
            folders += [Path(running.plan.work_folder)] if running.plan.work_folder else []
            assert all(folder.exists() for folder in folders)
        assert not still_running(below)
        assert not any(folder.exists() for folder in folders)


def test_a_slot_survives_changed_rights_of_its_folders():
    with jail(IsolationTier.C) as running:
        assert running.plan.work_folder is not None
        running.run_python("import os\nos.mkdir('below', 0)\nos.umask(0o777)\nopen('file', 'x')")
        os.chmod(Path(running.plan.work_folder, "slot-0-bare"), 0)
        os.chmod(running.plan.work_folder, 0)
        ran = running.run_python("import os\nprint(os.listdir())")
        assert ran.text == "['main.py']", ran


def test_no_mount_is_made_on_the_machine(kept: Jail):
    before = Path("/proc/self/mountinfo").read_text()
    kept.run_python("print(1)")
    assert Path("/proc/self/mountinfo").read_text() == before


def test_the_groups_of_a_dead_server_are_removed_at_the_next_start():
    if IsolationTier.A not in NAMESPACE_TIERS:
        pytest.skip("an ordinary user has no cgroup to write to")
    pid = os.fork()
    if pid == 0:
        with jail(IsolationTier.A):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with jail(IsolationTier.A) as running:
        assert running.plan.cgroups is not None
        for folder in running.plan.cgroups.folders.values():
            assert not list(folder.parent.glob(f"code-judge-{pid}-*"))


def test_the_folder_of_a_dead_server_is_removed_at_the_next_start_and_that_of_a_living_one_is_not():
    def folder_of_a_killed_one() -> Path:
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            with jail(IsolationTier.C) as running:
                running.run_python("import os\nos.mkdir('closed', 0)")
                os.write(writing, str(running.plan.work_folder).encode())
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(writing)
        os.waitpid(pid, 0)
        with open(reading) as path_file:
            return Path(path_file.read())

    with jail(IsolationTier.C) as living:
        dead = folder_of_a_killed_one()
        assert dead.is_dir()
        with jail(IsolationTier.C):
            assert not dead.exists()
        assert living.run_python("print('here')").text == "here"


def test_a_killed_slot_leaves_nothing_and_can_be_replaced(kept: Jail):
    slot = kept.slot()
    process = psutil.Process(slot.pid)
    process.kill()
    assert slot.end.recv(1) == b""
    assert not still_running([process])
    kept.forget_slots()
    assert kept.run_python("print('again')").text == "again"


def test_a_killed_zygote_is_replaced(kept: Jail):
    slot = kept.slot()
    status = Path(f"/proc/{slot.pid}/status").read_text()
    zygote = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
    os.kill(zygote, signal.SIGKILL)
    assert slot.end.recv(1) == b""
    kept.forget_slots()
    assert kept.run_python("print('again')").text == "again"
    os.kill(kept.slot().pid, signal.SIGKILL)
    kept.slot().end.settimeout(60)
    assert kept.slot().end.recv(1) == b"", "another process holds the socket of a slot that is dead"


@pytest.mark.parametrize("tier", NAMESPACE_TIERS)
def test_a_slot_ends_with_its_helper(tier: IsolationTier):
    with jail(tier) as running:
        slot = running.slot()
        running.run_python("pass")
        (helper,) = descendants(slot.pid)
        helper.kill()
        assert slot.end.recv(1) == b""
        running.forget_slots()
        assert running.run_python("print('again')").text == "again"


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b'{"kind": 1}', b'{"kind": "job"}', b"[" * 100_000])
def test_an_invalid_message_ends_only_its_slot(kept: Jail, data: bytes):
    slot = kept.slot()
    slot.end.send(data)
    assert slot.end.recv(1) == b""
    kept.forget_slots()
    assert kept.run_python("print('again')").text == "again"


def test_a_kill_without_a_job_is_ignored(kept: Jail):
    protocol.send(kept.slot().end, {"kind": "kill"})
    assert kept.run_python("print('alive')").text == "alive"


def test_a_job_that_cannot_be_set_up_is_an_error_and_no_verdict(kept: Jail):
    ran = kept.run_python("print(1)", files={"main.py/below": b"x"})
    assert ran.ended["error"] is not None
    assert kept.run_python("print(2)").text == "2"


def test_a_missing_command_is_reported_on_stderr(kept: Jail):
    ran = kept.run(["/usr/bin/none"])
    assert (ran.ended["exit_code"], ran.ended["error"]) == (126, None)
    assert b"No such file" in ran.stderr


def test_jobs_run_without_the_fast_path():
    for tier in NAMESPACE_TIERS:
        with jail(tier, fast_path=False) as running:
            ran = running.run_python(
                "import os; print(os.getpid(), os.listdir('/tmp'), sorted(os.listdir('/proc'))[:2])"
            )
            assert ran.text == f"2 {running.shown_in_tmp()} ['1', '2']"
            ran = running.run_python("open('/tmp/x', 'wb').write(bytes(9 << 20))", limits={"disk_bytes": 2**20})
            assert ran.ended["exit_code"] == 1 or ran.ended["signal"] == 25
            assert running.run_python("import time; time.sleep(100)", kill_after_s=0.2).ended["signal"] == 9
            assert b"python_main.py" in running.run_python("import traceback; traceback.print_stack()").stderr


def test_the_canaries_find_the_strongest_tier_by_running_a_job():
    search = find_tier()
    assert search.tier is NAMESPACE_TIERS[0]
    assert next(canary for canary in search.canaries if canary.name == f"a job in tier {search.tier.value}").passed
    assert find_tier(IsolationTier.B).tier is IsolationTier.B


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is another user in each slot")
def test_a_full_slot_of_another_judge_does_not_make_the_machine_look_weaker():
    with jail(IsolationTier.B) as running:
        other = running.plan.first_uid
    assert other is not None
    with contextlib.ExitStack() as stack:
        for _ in range(40):  # more tasks than a canary may have
            sleeper = stack.enter_context(subprocess.Popen(["/bin/sleep", "60"], user=other, group=other))
            stack.callback(sleeper.kill)
        assert find_tier(IsolationTier.B).tier is IsolationTier.B


def test_a_message_and_its_descriptors_arrive_together():
    ours, theirs = protocol.socket_pair()
    with ours, theirs, open("/dev/null") as null:
        protocol.send(ours, {"kind": "x"}, (null.fileno(),))
        received = protocol.receive(theirs)
        assert received is not None
        assert received[0] == {"kind": "x"}
        assert os.readlink(f"/proc/self/fd/{received[1][0]}") == "/dev/null"
        protocol.close_all(received[1])
        ours.shutdown(socket.SHUT_RDWR)
        assert protocol.receive(theirs) is None


def test_a_small_job_of_a_large_zygote_does_not_pay_for_its_size():
    with jail(NAMESPACE_TIERS[0], preloads={"sci": ("numpy", "sympy")}) as running:
        ran = [running.run_python("import sympy; print(1)", preload="sci").ended["cpu_time_s"] for _ in range(10)]
    assert min(ran) < 0.015  # 0.003 when idle; 0.03 if the interpreter frees all that it holds at the end


@pytest.mark.parametrize("fast_path", [True, False])
def test_helper_init_and_first_process_of_a_job_are_listed_in_this_order(fast_path: bool):
    with jail(NAMESPACE_TIERS[0], fast_path=fast_path) as running:
        slot = running.slot()
        (helper,) = process_tree.descendants(slot.pid, at_most=10)
        job = threading.Thread(target=slot.run, args=(["/bin/sh", "-c", "read line; sleep 0.3 & wait"],))
        job.start()
        wait_until(lambda: len(process_tree.descendants(slot.pid, at_most=10)) == 4)
        listed = process_tree.descendants(slot.pid, at_most=10)
        inside = [Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split() for pid in listed]
        job.join()
    assert (listed[0], [pids[-1] for pids in inside[1:3]]) == (helper, ["1", "2"])


def test_a_preload_set_that_cannot_be_loaded_is_named():
    with jail(NAMESPACE_TIERS[0], preloads={"odd": ("there_is_no_such_module",)}) as running:
        received = protocol.receive(running.end)
        assert received is not None
        assert received[0]["kind"] == "failed"
        assert "there_is_no_such_module" in received[0]["why"]


def test_the_last_message_of_a_zygote_is_passed_on_before_a_request_restarts_it():
    server, launchers_end = protocol.socket_pair()
    machine: Any = SimpleNamespace(work_folder=None)
    launcher = Launcher(launchers_end, machine, {})
    end, zygotes_end = protocol.socket_pair()
    zygote = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zygote.pid, os.WEXITED | os.WNOWAIT)
    launcher._zygotes["odd"] = _Zygote("odd", zygote.pid, end)
    protocol.send(end, {"kind": "slot", "number": 0})  # which it leaves unread
    protocol.send(zygotes_end, {"kind": "failed", "why": "no such module"})
    zygotes_end.close()
    assert not launcher._request({"kind": "slot", "number": 1, "preload": "odd"}, [])
    assert protocol.receive(server) == ({"kind": "failed", "why": "no such module"}, [])
    zygote.wait()
    for left in (server, launchers_end, end):
        left.close()


@pytest.mark.parametrize("fast_path", [True, False])
def test_a_stream_of_orphans_does_not_delay_the_end(fast_path: bool):
    code = """
import contextlib
import os
while True:
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    with jail(NAMESPACE_TIERS[0], fast_path=fast_path) as running:
        assert running.run_python(code, kill_after_s=0.5).ended["signal"] == 9


def test_a_slot_holds_no_way_to_the_machine():
    with jail(NAMESPACE_TIERS[0], num_slots=3) as running:
        slot = running.slot(1)
        running.run_python("print(1)", slot=1)
        held = [os.readlink(entry) for entry in Path(f"/proc/{slot.pid}/fd").iterdir()]
    assert not any(target == "/proc" or target.startswith("/proc/") for target in held)
    assert not any("slot-0" in target or "slot-2" in target for target in held)


@pytest.mark.skipif(os.geteuid() != 0, reason="the jobs' processes are another's in the eyes of the kernel")
def test_an_init_killed_at_any_moment_blocks_nothing():
    with jail(NAMESPACE_TIERS[0]) as running:
        slot = running.slot()
        (helper,) = descendants(slot.pid)
        stop = time.monotonic() + 3

        def kill_inits() -> None:
            while time.monotonic() < stop:
                for process in descendants(slot.pid):
                    if process != helper:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.kill()

        killer = threading.Thread(target=kill_inits)
        killer.start()
        ended = []
        while time.monotonic() < stop:
            ended.append(running.run_python("import time; time.sleep(0.01)").ended)
        killer.join()
        assert all(end["error"] is not None or end["signal"] == 9 or end["exit_code"] == 0 for end in ended)
        assert running.run_python("print('again')").text == "again"
