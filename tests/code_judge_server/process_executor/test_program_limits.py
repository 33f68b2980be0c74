"""Programs that do what models write by accident or on purpose, and their leftovers."""

import json
import socket
import uuid
from collections.abc import Iterator

import httpx
import pytest
from judge_process import JudgeProcess, pids_with, running_judge, wait_until

SPAWN = "import subprocess, sys, os\nsleeper = [sys.executable, '-c', 'import time; time.sleep(600)', {marker!r}]\n"


@pytest.fixture
def marker() -> str:
    """A word that no other process has in its command line."""
    return f"marker-{uuid.uuid4().hex}"


def assert_slots_still_work(judge: JudgeProcess) -> None:
    verdicts = judge.judge_batch([{"id": str(i), "language": "python", "code": f"print({i})"} for i in range(4)])
    assert [verdict["stdout"] for verdict in verdicts] == ["0\n", "1\n", "2\n", "3\n"]


def test_a_busy_loop_is_ended_by_its_cpu_time(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="while True: pass", limits={"cpu_time_s": 0.5})
    assert verdict["status"] == "time_limit_exceeded"
    assert 0.5 <= verdict["cpu_time_s"] < 1


def test_cpu_time_of_children_counts(judge: JudgeProcess) -> None:
    code = "import os\nos.fork(); os.fork()\nwhile True: pass"
    verdict = judge.judge(code=code, limits={"cpu_time_s": 0.5})
    assert verdict["status"] == "time_limit_exceeded"
    assert 0.5 <= verdict["cpu_time_s"] < 1.5


def test_a_sleeper_is_ended_by_the_wall_clock(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="import time; print('up', flush=True); time.sleep(60)", limits={"wall_time_s": 2})
    assert verdict["status"] == "time_limit_exceeded"
    assert verdict["stdout"] == "up\n"
    assert 2 <= verdict["wall_time_s"] < 50
    assert verdict["cpu_time_s"] < 0.4


def test_a_program_that_ignores_signals_is_ended(judge: JudgeProcess) -> None:
    code = (
        "import signal, time\nfor number in range(1, 32):\n"
        "    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)\ntime.sleep(60)"
    )
    assert judge.judge(code=code, limits={"wall_time_s": 0.5})["status"] == "time_limit_exceeded"
    assert_slots_still_work(judge)


def test_a_program_that_stops_itself_is_ended(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="import os; os.kill(os.getpid(), 19)", limits={"wall_time_s": 0.5})
    assert verdict["status"] == "time_limit_exceeded"
    assert_slots_still_work(judge)


def test_an_output_flood_is_ended_at_the_limit(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="while True: print('x' * 10000)")
    assert verdict["status"] == "output_limit_exceeded"
    assert verdict["stdout_truncated"]
    assert len(verdict["stdout"]) == 65536


def test_a_flood_of_stderr_is_ended_too(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="import sys\nwhile True: sys.stderr.write('x' * 10000)")
    assert verdict["status"] == "output_limit_exceeded"
    assert (verdict["stdout_truncated"], verdict["stderr_truncated"]) == (False, True)


def test_long_output_is_judged_whole_and_cut_in_the_reply(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="print('x' * 100_000)", expected_output="x" * 100_000)
    assert verdict["status"] == "accepted"
    assert (len(verdict["stdout"]), verdict["stdout_truncated"]) == (65536, True)


def test_invalid_utf8_is_replaced_and_flagged(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="import sys; sys.stdout.buffer.write(b'a\\xffb'); sys.stderr.write('\u00e4')")
    assert verdict["stdout"] == "a\ufffdb"
    assert (verdict["stdout_invalid_utf8"], verdict["stderr_invalid_utf8"]) == (True, False)
    assert verdict["stderr"] == "\u00e4"


def test_a_memory_hog_is_ended(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="x = []\nwhile True: x.append(bytearray(b'x' * 1_000_000))")
    assert verdict["status"] == "memory_limit_exceeded"
    assert verdict["peak_memory_bytes"] > 256 * 1024 * 1024
    assert verdict["peak_memory_bytes"] < 800 * 1024 * 1024


def test_memory_of_children_counts(judge: JudgeProcess) -> None:
    code = "import os, time\nfor _ in range(3):\n    os.fork()\nx = bytearray(b'x' * 100_000_000)\ntime.sleep(30)"
    assert judge.judge(code=code)["status"] == "memory_limit_exceeded"


def test_memory_that_children_share_counts_once(judge: JudgeProcess) -> None:
    code = (
        "import os, time\nx = b'x' * 100_000_000\n"
        "pids = [os.fork() for _ in range(3)]\ntime.sleep(0.3)\nif all(pids): [os.wait() for _ in range(3)]"
    )
    assert judge.judge(code=code)["status"] == "accepted"


def test_reserved_address_space_is_not_memory(judge: JudgeProcess) -> None:
    assert judge.judge(code="import mmap; m = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_SHARED)")["status"] == "accepted"


# The bombs end by themselves at 4,096 processes, in case it is the judge that fails.
def test_a_fork_bomb_is_bounded(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="import os, time\nfor _ in range(12): os.fork()\ntime.sleep(60)")
    assert (verdict["status"], verdict["signal"]) == ("runtime_error", 9)
    assert_slots_still_work(judge)


def test_a_fork_bomb_whose_processes_leave_their_session_is_bounded(judge: JudgeProcess) -> None:
    code = "import os, time\nfor _ in range(12):\n    if os.fork() == 0: os.setsid()\ntime.sleep(60)"
    verdict = judge.judge(code=code)
    assert (verdict["status"], verdict["signal"]) == ("runtime_error", 9)
    assert_slots_still_work(judge)


def test_a_thread_bomb_is_bounded(judge: JudgeProcess) -> None:
    code = "import threading, time\nfor _ in range(4000): threading.Thread(target=time.sleep, args=(60,)).start()"
    verdict = judge.judge(code=code)
    assert (verdict["status"], verdict["signal"]) == ("runtime_error", 9)


def test_a_hundred_threads_are_no_bomb(judge: JudgeProcess) -> None:
    code = "import time\nfrom concurrent.futures import *\nprint(*ThreadPoolExecutor(100).map(time.sleep, [0.2] * 100))"
    assert judge.judge(code=code)["stdout"].count("None") == 100


def test_a_child_that_outlives_its_program_is_ended(judge: JudgeProcess, marker: str) -> None:
    verdict = judge.judge(code=SPAWN.format(marker=marker) + "subprocess.Popen(sleeper)\nprint(1)")
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "1\n")
    assert verdict["wall_time_s"] < 50  # although the child holds stdout
    assert pids_with(marker) == []


def test_a_daemon_is_ended(judge: JudgeProcess, marker: str) -> None:
    code = (
        SPAWN.format(marker=marker)
        + "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        import signal\n"
        + "        signal.signal(15, signal.SIG_IGN)\n        os.execv(sleeper[0], sleeper)\n    os._exit(0)\n"
        + "os.wait()\nimport time; time.sleep(0.3); print('started')"
    )
    verdict = judge.judge(code=code)
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "started\n")
    assert pids_with(marker) == []


def test_nothing_of_a_program_is_left_for_the_next_one(judge: JudgeProcess) -> None:
    deep = (
        "import os\nopen('left', 'w').close()\nfor _ in range(2200):\n    os.mkdir('d'); os.chdir('d')\n"
        "os.chmod('.', 0)\nprint('deep')"
    )
    for _ in range(2):
        assert judge.judge(code=deep)["stdout"] == "deep\n"
    verdicts = judge.judge_batch(
        [{"id": str(i), "language": "python", "code": "import os; print(os.listdir())"} for i in range(4)]
    )
    assert {verdict["stdout"] for verdict in verdicts} == {"['main.py']\n"}


def test_the_environment_of_the_server_is_not_that_of_programs(judge: JudgeProcess) -> None:
    names = judge.judge(code="import os; print(*sorted(os.environ))")["stdout"].split()
    assert "HOME" in names
    assert not any(name.startswith(("CODE_JUDGE", "PYTEST", "MAX_")) for name in names)


def test_a_file_cannot_grow_without_bound(judge: JudgeProcess) -> None:
    verdict = judge.judge(code="with open('f', 'wb') as f:\n    while True: f.write(b'x' * 1_000_000)")
    assert verdict["status"] == "runtime_error"
    assert "File too large" in verdict["stderr"]


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("from __future__ import annotations\nprint(__name__, __builtins__.__name__)", "__main__ builtins\n"),
        ("import sys; print(sys.argv, sys.stdin.buffer.read())", "['main.py'] b'in\\n'\n"),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", "hi\nbye\n"),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", "late\n"),
        ("import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(1)']))", "b'1\\n'\n"),
        (
            "import multiprocessing as m\nif __name__ == '__main__':\n    print(m.Pool(2).map(abs, [-1, -2]))",
            "[1, 2]\n",
        ),
        ("import helper", ""),
    ],
)
def test_programs_run_as_python_file_would(judge: JudgeProcess, code: str, stdout: str) -> None:
    verdict = judge.judge(code=code, stdin="in\n")
    assert verdict["stdout"] == stdout
    assert verdict["status"] == ("accepted" if stdout else "runtime_error")


@pytest.fixture(scope="module")
def judge_of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """A judge whose programs may kill its slots: they have the same user, unlike those of root's judge."""
    with running_judge(tmp_path_factory.mktemp("judge"), "--num-slots", "2", ordinary_user=True) as server:
        yield server


def test_a_slot_that_is_killed_is_replaced_and_its_program_run_again(judge_of_a_user: JudgeProcess) -> None:
    once = "import os, pathlib\nflag = pathlib.Path({path!r})\nfirst = not flag.exists()\nflag.touch()\n"
    path = str(judge_of_a_user.folder / f"flag-{uuid.uuid4().hex}")
    verdict = judge_of_a_user.judge(code=once.format(path=path) + "if first: os.kill(os.getppid(), 9)\nprint('again')")
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "again\n")


def test_a_program_that_kills_its_slot_every_time_is_an_internal_error(
    judge_of_a_user: JudgeProcess, marker: str
) -> None:
    code = SPAWN.format(marker=marker) + (
        "if os.fork() == 0:\n    os.setsid(); os.execv(sleeper[0], sleeper)\n"
        "import time; time.sleep(0.2); os.kill(os.getppid(), 9); time.sleep(60)"
    )
    verdict = judge_of_a_user.judge(code=code)
    assert verdict["status"] == "internal_error"
    assert pids_with(marker) == []
    assert_slots_still_work(judge_of_a_user)


def test_a_client_that_disconnects_cancels_its_submissions(judge: JudgeProcess, marker: str) -> None:
    submissions = [
        {"id": str(i), "language": "python", "code": SPAWN.format(marker=marker) + "subprocess.run(sleeper)"}
        for i in range(6)
    ]
    body = json.dumps({"submissions": submissions}).encode()
    url = httpx.URL(judge.url)
    with socket.create_connection((url.host, url.port)) as client:
        head = f"POST /v1/submissions/batch HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: pids_with(marker) != [])
    judge.wait_until_running(0)
    assert judge.http.get("/v1/health").json()["queue_length"] == 0
    wait_until(lambda: pids_with(marker) == [])
    assert_slots_still_work(judge)
