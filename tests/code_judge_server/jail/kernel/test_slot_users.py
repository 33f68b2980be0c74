"""Slot users: an ordinary user's judge gives each slot its own user if the machine allows it, so that programs do not share
what the kernel counts by user.
"""

import contextlib
import http.client
import json
import os
import stat
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge, wait_until

from code_judge_server.jail.kernel.slot_users import SlotUsers, find_slot_users, first_user_of, first_user_of_any
from code_judge_server.jail.kernel.user_namespace import (
    become_slot_user,
    enter_user_namespace,
    enter_user_namespace_with,
)

PIPE_BYTES = 65536
MANY_DESCRIPTORS = 2500
"""Descriptors of 13 processes with 256 each, mostly ends of pipes: the kernel gives a user 1,024 full-size pipes."""
FLOOD = """
import os, socket, sys, time
ends, pairs = [], []
children = 0
while children < 12 and os.fork():  # each may hold 256 descriptors: together more pipes than a user gets whole
    children += 1
try:
    while True:
        ends.append(os.pipe())
except OSError:
    for pair in ends[-20:]:
        os.close(pair[0]), os.close(pair[1])
null = os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b"x"], [null] * 100)
except OSError as error:
    print(error, flush=True)
time.sleep(100)
"""
HONEST = """
import fcntl, os, select, socket
reading, writing = os.pipe()
print(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [reading])
print(len(socket.recv_fds(theirs, 1, 1)[1]))
with select.epoll() as poll:
    poll.register(reading)
print(os.getuid(), open("/proc/self/uid_map").read().split()[0])
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start a process as another user, with a capability"
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    settings = [
        "--max-wall-time-s",
        "100",
        "--num-slots",
        "2",
        "--spare-slots",
        "2",
        "--max-sessions",
        "1",
        *WITHOUT_MODULES,
    ]
    folder = tmp_path_factory.mktemp("judge")
    with running_judge(folder, *settings, isolation="B", ordinary_user=True, may_set_uid=True) as server:
        yield server


def submission(code: str, number: int) -> dict[str, Any]:
    return {"id": f"{number}", "code": textwrap.dedent(code), "limits": {"wall_time_s": 100.0}}


def test_the_judge_says_that_its_slots_have_users(judge: JudgeProcess) -> None:
    canaries = {canary["name"]: canary for canary in judge.http.get("/v1/health").json()["canaries"]}
    canary = canaries["users for slots in tier B"]
    assert canary["passed"]
    assert "CAP_SETUID" in canary["detail"]


def test_a_flood_of_pipes_and_passed_descriptors_takes_nothing_from_a_neighbour(judge: JudgeProcess) -> None:
    alone = judge.judge(**submission(HONEST, 0))
    assert (alone["status"], alone["stdout"]) == ("accepted", f"{PIPE_BYTES}\n1\n1000 1000\n"), alone
    flood = http.client.HTTPConnection(judge.url.removeprefix("http://"))
    with contextlib.closing(flood):  # which ends the program
        flood.request("POST", "/v1/submissions", json.dumps(submission(FLOOD, 1)), {"Content-Type": "application/json"})
        wait_until(lambda: judge.http.get("/v1/health").json()["num_running"] == 1, timeout_s=60)
        wait_until(lambda: num_descriptors_of_others() >= MANY_DESCRIPTORS, timeout_s=60)
        beside = [judge.judge(**submission(HONEST, number)) for number in range(2, 6)]
        assert num_descriptors_of_others() >= MANY_DESCRIPTORS, "the flood has ended before"
    assert [verdict["stdout"] for verdict in beside] == [alone["stdout"]] * 4
    assert [verdict["status"] for verdict in beside] == ["accepted"] * 4


def test_a_session_runs_its_cells_as_a_user_of_its_own(judge: JudgeProcess) -> None:
    opened = judge.http.post("/v1/sessions", json={}).json()
    url = f"/v1/sessions/{opened['session_id']}/cells"
    judge.http.post(url, json={"code": "import os; x = os.getuid()"})
    assert judge.http.post(url, json={"code": "x"}).json()["display"][0]["text/plain"] == "1000"


SHARED = """
import os, time
data = bytearray(os.urandom(1 << 20) * 90)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit(0)
for _ in range(3):
    os.wait()
print(len(data))
"""


def test_shared_memory_of_slot_users_counts_once(judge: JudgeProcess) -> None:
    limits = {"memory_bytes": 256 << 20, "wall_time_s": 100.0}
    shared = judge.judge(code=SHARED, limits=limits)
    assert (shared["status"], shared["stdout"]) == ("accepted", f"{90 << 20}\n"), shared
    written = SHARED.replace(
        "        time.sleep(1.5)", "        data[::4096] = bytes(90 * 256)\n        time.sleep(60)"
    )
    assert judge.judge(code=written, limits=limits)["status"] == "memory_limit_exceeded"


def num_descriptors_of_others() -> int:
    """Return the number of descriptors of processes whose users only slots have."""
    number = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid >= 2_000_000_000:
                number += len(list((entry / "fd").iterdir()))
        except OSError:
            continue
    return number


@pytest.mark.parametrize("by_program", [False, True])
def test_users_are_mapped_by_this_process_or_by_a_program(tmp_path: Path, by_program: bool) -> None:
    program = tmp_path / "newuidmap"
    program.write_text('#!/bin/sh\nprintf "$2 $3 $4\\n$5 $6 $7\\n" > /proc/$1/uid_map\n')
    program.chmod(stat.S_IRWXU)
    users = SlotUsers(first=2_000_000_000, count=5, newuidmap=str(program) if by_program else None)
    assert in_child(users) == "0 0 1 1 2000000000 5|1000 3 1"


def test_users_that_cannot_be_mapped_are_an_error(tmp_path: Path) -> None:
    refusing = SlotUsers(first=2_000_000_000, count=5, newuidmap="/bin/false")
    assert "cannot be mapped" in in_child(refusing)
    assert "cannot be mapped" in in_child(SlotUsers(first=1, count=5, newuidmap=str(tmp_path / "none")))


def in_child(users: SlotUsers) -> str:
    """Return the user map that a child sees in its namespace and in a slot's below it, or the error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter_user_namespace_with(users)
            outer = " ".join(Path("/proc/self/uid_map").read_text().split())
            become_slot_user(3)
            enter_user_namespace(as_user=1000)
            inner = " ".join(Path("/proc/self/uid_map").read_text().split())
            os.write(writing, f"{outer}|{inner}".encode())
        except OSError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def test_the_first_range_that_is_large_enough_and_for_this_user_is_taken() -> None:
    ranges = "# none\nother:100000:9\nme:165536:3\nme:\n1000:x:9\n1000:231072:7\nme:300000:5\n"
    assert first_user_of(ranges, {"me", "1000"}, 3) == 165536
    assert first_user_of(ranges, {"me", "1000"}, 4) == 231072
    assert first_user_of(ranges, {"me"}, 4) == 300000
    assert first_user_of(ranges, {"me"}, 6) is None
    assert first_user_of("", {"me"}, 1) is None


def test_judges_of_one_user_share_all_slot_users_or_none() -> None:
    firsts = {first_user_of("me:100000:65536\n", {"me"}, 20) for _ in range(1000)}
    assert len(firsts) > 700, "of 3276 that there are"
    assert firsts <= set(range(100000, 165536 - 19, 20))


def test_a_judge_that_may_use_any_user_needs_no_range() -> None:
    drawn = [find_slot_users(7) for _ in range(1000)]
    firsts = [users.first for users in drawn if users is not None]
    assert drawn == [SlotUsers(first=first, count=7, newuidmap=None) for first in firsts]
    assert len(set(firsts)) > 990, "two judges share users"
    assert len({first % 7 for first in firsts}) == 1, "two judges share some of their users"


def test_users_reserved_for_accounts_or_containers_are_not_drawn() -> None:
    """SSSD's default range ends at 2,000,200,000, and systemd's for users of other machines begins at 2,147,352,576."""
    for num_slots in (1, 7, 20_000_000):
        for _ in range(1000):
            first = first_user_of_any(num_slots)
            assert first > 2_000_200_000
            assert first + num_slots <= 2_147_352_576


@pytest.mark.parametrize("num_slots", [0, 10**12])
def test_extreme_numbers_of_slots_are_no_division_by_zero(num_slots: int) -> None:
    assert first_user_of_any(num_slots) == first_user_of_any(num_slots)
