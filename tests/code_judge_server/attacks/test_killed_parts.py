"""Parts of the judge that are killed while programs run: nothing is lost, and dead parts are rebuilt."""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from judge_process import WITHOUT_MODULES, running_judge, wait_until
from leftovers import processes_of

from tests.processes import still_running

SLEEPER = "import time\ntime.sleep(0.5)\nprint('awake')"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root may signal the jobs of root's judge"),
]


@pytest.fixture(scope="module", params=["root", "ordinary_user"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack(request.param, tmp_path_factory.mktemp(request.param), *WITHOUT_MODULES) as judge:
        yield judge


def parts(attacked: AttackedJudge) -> list[psutil.Process]:
    """Return every process below the server, from the launcher down."""
    return psutil.Process(attacked.server.process.pid).children(recursive=True)


def verdicts_while(attacked: AttackedJudge, number: int, signal_number: int) -> list[dict]:
    """Judge two sleepers; signal one part of the judge while they run.

    On a crowded machine they may end before both have been seen to run: then others are sent.
    """
    while True:
        verdicts: list[dict] = []
        submissions = [{"id": uuid.uuid4().hex, "code": SLEEPER} for _ in range(2)]
        thread = threading.Thread(
            target=lambda into, sent: into.extend(attacked.server.judge_batch(sent)), args=(verdicts, submissions)
        )
        thread.start()
        family = parts(attacked)
        while len(family) <= number and thread.is_alive():
            time.sleep(0.02)
            family = parts(attacked)
        if number < len(family):
            with contextlib.suppress(psutil.NoSuchProcess):
                family[number].send_signal(signal_number)
        thread.join()
        if number < len(family):
            return verdicts


def assert_all_is_built_again(attacked: AttackedJudge, after: str) -> None:
    honest = attacked.server.judge_batch([attacked.honest("one"), attacked.honest("other")])
    assert [verdict["status"] for verdict in honest] == ["accepted"] * 2, (after, honest)
    attacked.use_every_slot()
    wait_until(lambda: processes_of(attacked.server.process.pid) == attacked.processes)


@pytest.mark.timeout(300)
def test_every_submission_is_answered_and_a_killed_part_is_rebuilt(
    attacked: AttackedJudge,
) -> None:
    num_parts = sum(attacked.processes.values()) - 1
    for number in range(num_parts + 4):  # the jobs and their inits are parts too
        verdicts = verdicts_while(attacked, number, signal.SIGKILL)
        name = f"part {number}"
        assert len(verdicts) == 2, name
        for verdict in verdicts:
            killed_itself = (verdict["status"], verdict["signal"]) == ("runtime_error", 9)
            assert killed_itself or verdict["status"] in ("accepted", "internal_error"), (name, verdict)
        assert_all_is_built_again(attacked, name)


def test_a_killed_launcher_loses_nothing(attacked: AttackedJudge) -> None:
    verdicts = verdicts_while(attacked, 0, signal.SIGKILL)
    assert [verdict["stdout"] for verdict in verdicts] == ["awake\n"] * 2, verdicts
    assert_all_is_built_again(attacked, "launcher")


def groups_of(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(f"code-judge-{pid}-*"))


@pytest.mark.parametrize("isolation", ["A", "B"])
def test_a_killed_server_takes_everything_with_it(tmp_path: Path, isolation: str) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(60)"
    arguments = ["--num-slots", "2", *WITHOUT_MODULES]
    with running_judge(tmp_path, *arguments, isolation=isolation, ordinary_user=isolation == "B") as server:
        process = psutil.Process(server.process.pid)
        num_idle = len(process.children(recursive=True))

        def send() -> None:
            with contextlib.suppress(httpx.TransportError):
                server.judge_batch([{"id": str(number), "code": daemon} for number in range(2)])

        threading.Thread(target=send, daemon=True).start()
        wait_until(lambda: len(process.children(recursive=True)) >= num_idle + 4)
        family = process.children(recursive=True)
        server.process.kill()
        server.process.wait()
        assert not still_running(family)
        wait_until(lambda: not groups_of(process.pid))
