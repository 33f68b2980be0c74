"""A judge under attack: beside each attack runs an honest program, and two more in both slots after it."""

import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attacks.attack import LIMITS, Attack
from attacks.surroundings import Surroundings, new_canary, surroundings
from judge_process import JudgeProcess, running_judge
from leftovers import adopting_orphans, assert_nothing_is_left, look, processes_of
from ordinary_user import user_id

HONEST_PROGRAM = """
# {canary} {nonce}
import builtins, json, os, re, resource, signal, socket, subprocess, sys, time
def listed(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return error.strerror
VARYING = (resource.RLIMIT_CPU, resource.RLIMIT_NPROC)  # in tier C the second is on top of what runs besides
given = sys.stdin.read()
print("given", given.split()[0], len(given), hash(given))
seen = str((sorted(os.environ.items()), sys.path, sys.flags, sys.getrecursionlimit(), sys.getswitchinterval()))
print("sees", seen.replace(os.getcwd(), "here"))
print("folders", listed("."), [listed(path) for path in ("/tmp", "/dev/shm")])
print("processes", sum(name.isdigit() for name in listed("/proc")))
print("settings", oct(os.umask(0o022)), os.nice(0), len(os.sched_getaffinity(0)), socket.gethostname(), os.getuid() != 0)
print("limits", [resource.getrlimit(number) for number in range(16) if number not in VARYING])
print("signals", [signal.getsignal(number) for number in range(1, 65) if number not in (32, 33)], signal.pthread_sigmask(0, []))
print("modules", json.dumps([re.sub("a", "b", "a"), 256 + 1]), builtins.print is print)
for folder in (os.getcwd(), "/tmp", "/dev/shm"):
    path = os.path.join(folder, "own-file")
    try:
        open(path, "w").write(given)
    except PermissionError:
        print("no file in", folder)
        continue
    time.sleep(0.02)
    assert open(path).read() == given
print("child", subprocess.run(["/bin/sh", "-c", "echo $((6 * 7))"], capture_output=True, text=True).stdout)
"""
"""Prints its view of the world, which must be the same before, beside and after each attack."""

SLOT_USERS = range(2_000_000_000, 2**31)
"""Users of the jobs of any judge that root started."""

_REAL_PASSWORD_LINE = re.compile(r"^root:[$*!]", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class AttackedJudge:
    """A judge with two slots, its surroundings, and the output of an honest program before any attack."""

    server: JudgeProcess
    around: Surroundings
    canary: str
    """Secret word in the honest program's source, input, output and expected output."""
    warm: tuple[str, ...]
    """Modules that its warm interpreters have imported."""
    honest_output: str = ""
    processes: Counter[str] = field(default_factory=Counter)
    """Processes of the judge when no program runs."""

    def honest(self, identifier: str) -> dict[str, Any]:
        """Return the honest submission under an id that the judge has not seen."""
        return {
            "id": identifier,
            "code": HONEST_PROGRAM.format(canary=self.canary, nonce=secrets.token_hex(4)),
            "stdin": f"{self.canary}\n" * 100,
            "expected_output": self.honest_output,
            "limits": LIMITS | {"wall_time_s": 60.0, "cpu_time_s": 3.0},
        }

    def learn_what_is_normal(self) -> None:
        """Run the honest program undisturbed, in both slots."""
        self.use_every_slot()
        submissions = [self.honest(name) | {"expected_output": None} for name in ("first", "second")]
        first, second = self.server.judge_batch(submissions)
        assert first["status"] == "accepted", first
        assert first["stdout"] == second["stdout"]
        self.honest_output = first["stdout"]
        self.processes = processes_of(self.server.process.pid)

    def use_every_slot(self) -> None:
        """Run programs of every warm interpreter in both slots, after which every dead part has been rebuilt."""
        for module in ("sys", *self.warm):
            code = f"import time, {module}\ntime.sleep(0.1)"
            programs = [{"id": secrets.token_hex(8), "code": code} for _ in range(2)]
            verdicts = self.server.judge_batch(programs)
            assert [verdict["status"] for verdict in verdicts] == ["accepted"] * 2, verdicts

    def run_attack(self, attack: Attack, *, beside_an_honest_one: bool = True) -> dict[str, Any]:
        """Run an attack beside an honest program, then honest ones in both slots; return the verdict on the attack."""
        submission = attack.submission(self.around.target)
        if beside_an_honest_one:
            verdict = self.judge_beside_an_honest_one(submission)
        else:
            [verdict] = self.server.judge_batch([submission])
        for other in self.server.judge_batch([self.honest("after"), self.honest("after, in the other slot")]):
            self._assert_undisturbed(other)
        for stream in ("stdout", "stderr"):
            assert self.canary not in verdict[stream]
            assert self.around.canary not in verdict[stream]
            assert not _REAL_PASSWORD_LINE.search(verdict[stream])
        assert self.around.signs_of_contact() == []
        self._assert_no_other_processes()
        return verdict

    def judge_beside_an_honest_one(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Judge a program together with an honest one, whose verdict must be the usual one; return the first verdict."""
        verdict, honest = self.server.judge_batch([submission, self.honest("beside")])
        self._assert_undisturbed(honest)
        return verdict

    def _assert_undisturbed(self, honest: dict[str, Any]) -> None:
        assert honest["stdout"] == self.honest_output, honest
        assert honest["status"] == "accepted", honest

    def _assert_no_other_processes(self) -> None:
        deadline = time.monotonic() + 60.0
        while (now := processes_of(self.server.process.pid)) != self.processes:
            more, less = now - self.processes, self.processes - now
            if time.monotonic() > deadline:
                self.processes = now  # one attack is to blame, not all after it
                raise AssertionError(f"of the judge's processes there are {more} more, {less} less")
            time.sleep(0.02)


@contextmanager
def attacked_judge(folder: Path, *settings: str, isolation: str, ordinary_user: bool) -> Iterator[AttackedJudge]:
    """Start a judge with all the targets of attacks around it."""
    with surroundings(folder, ordinary_user=ordinary_user) as around:
        headers = {"Authorization": f"Bearer {around.canary}"}
        arguments = [
            "--num-slots",
            "2",
            "--spare-slots",
            "0",
            "--max-memory-mb",
            "1024",
            "--compile-time-s",
            "2",
            "--max-wall-time-s",
            "60",
        ]
        with running_judge(
            folder,
            *arguments,
            *settings,
            isolation=isolation,
            ordinary_user=ordinary_user,
            environment={"CODE_JUDGE_TOKEN": around.canary},
            headers=headers,
            with_modules=True,
        ) as server:
            health = server.http.get("/v1/health").json()
            around.aim_at(server_pid=server.process.pid, url=server.url, isolated=health["isolation"] in ("A", "B"))
            warm = () if "--preloads" in settings else ("numpy",)
            yield AttackedJudge(server=server, around=around, canary=new_canary(), warm=warm)


@contextmanager
def judge_under_attack(starter: str, folder: Path, *settings: str) -> Iterator[AttackedJudge]:
    """Start a judge as root (tier A, or another named as in `root in C`), as an `ordinary_user` (tier B), as one
    `without_namespaces` (tier C) or `without_isolation` (tier D); at the end nothing of the attacks may be left.
    """
    tiers = {"root": "A", "ordinary_user": "B", "without_namespaces": "C", "without_isolation": "D"}
    isolation = tiers.get(starter) or starter.removeprefix("root in ")
    is_ordinary = not starter.startswith("root")
    if os.getuid() != 0 and not is_ordinary:
        pytest.skip("the tests do not run as root")
    users = [user_id()] if is_ordinary else SLOT_USERS
    with adopting_orphans() as others:
        before_start = look(None, folder=folder, users=users, others=others)
        with attacked_judge(folder, *settings, isolation=isolation, ordinary_user=is_ordinary) as judge:
            if isolation == "D":
                judge.use_every_slot()
            else:
                judge.learn_what_is_normal()
            server_pid = judge.server.process.pid
            before_attacks = look(server_pid, folder=folder, users=users)
            yield judge
            judge.use_every_slot()
            assert_nothing_is_left(before_attacks, lambda: look(server_pid, folder=folder, users=users))
            judge.server.process.terminate()
            judge.server.process.wait(timeout=60)
        assert_nothing_is_left(before_start, lambda: look(server_pid, folder=folder, users=users, others=others))
