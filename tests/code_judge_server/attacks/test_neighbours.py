"""Programs that share the judge, at the same time or one after the other: they can neither read nor take from each other."""

import textwrap
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from attacks.attack import LIMITS, MIB, PRELUDE, reached
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from attacks.corpus import poisoning
from judge_process import running_judge
from session_client import Session


@pytest.fixture(scope="module", params=["root", pytest.param("ordinary_user", marks=pytest.mark.slow)])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack(request.param, tmp_path_factory.mktemp(request.param)) as judge:
        yield judge


def python(code: str, target: dict[str, Any], **limits: float) -> dict[str, Any]:
    """Return a submission that has not been judged before."""
    text = PRELUDE.format(target=target) + textwrap.dedent(code)
    return {"id": uuid.uuid4().hex, "code": text, "limits": LIMITS | limits}


MEETING = """
name = TARGET["meeting"]
server = socket.socket(socket.AF_UNIX)
server.bind("\\0" + name)
server.listen()
server.setblocking(False)
segment = _libc.shmget(0x77777, 4096, 0o1666)
for folder in ("/tmp", "/dev/shm", "/var/tmp", "/sandbox", "/run"):
    try:
        open(f"{folder}/{name}-{TARGET['me']}", "w").close()
    except OSError:
        pass
until = time.monotonic() + 0.7
while time.monotonic() < until:
    try:
        server.accept()
        say("reached: the other called")
    except BlockingIOError:
        pass
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/sandbox", "/run"):
        if os.path.exists(f"{folder}/{name}-{TARGET['other']}"):
            say(f"reached: a file of the other in {folder}")
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) not in (1, os.getpid()):
            say(f"reached: process {pid}")
    time.sleep(0.05)
say("done")
"""


@pytest.mark.slow
def test_accomplices_in_two_slots_do_not_meet(attacked: AttackedJudge) -> None:
    # Both bind the same name: where they could meet, the second would be refused.
    names = {"meeting": uuid.uuid4().hex}
    submissions = [python(MEETING, names | {"me": me, "other": 1 - me}) for me in range(2)]
    verdicts = attacked.server.judge_batch(submissions)
    assert [(verdict["status"], verdict["stdout"]) for verdict in verdicts] == [("accepted", "done\n")] * 2, verdicts


WITH_NUMPY = """
import numpy, sympy
x = sympy.Symbol("x")
print(sympy.integrate(sympy.sin(x) * x, x), sympy.factor(x**4 - 1), sympy.S(0), numpy.get_printoptions()["precision"])
print(sorted(numpy.geterr().items()), numpy.linalg.det(numpy.eye(3) * 2), numpy.add(1, 2), (numpy.zeros(1 << 20) == 0).all())
print(len(os.sched_getaffinity(0)), sys.getrecursionlimit(), sorted(os.listdir()))
"""


def test_a_spoilt_numpy_is_not_handed_on(attacked: AttackedJudge) -> None:
    limits = {"memory_bytes": 512 * MIB, "cpu_time_s": 4.0, "wall_time_s": 60.0}

    def honest() -> list[str]:
        verdicts = attacked.server.judge_batch([python(WITH_NUMPY, {}, **limits) for _ in range(2)])
        assert [verdict["status"] for verdict in verdicts] == ["accepted"] * 2, verdicts
        return [verdict["stdout"] for verdict in verdicts]

    before = honest()
    for attack in poisoning.ATTACKS:
        submission = attack.submission(attacked.around.target)
        submission["limits"] |= limits
        submission["code"] = submission["code"].replace("\nimport ctypes", "\nimport numpy, sympy, ctypes", 1)
        verdicts = attacked.server.judge_batch([submission | {"id": uuid.uuid4().hex} for _ in range(2)])
        assert [reached(verdict) for verdict in verdicts] == [[], []]
        assert honest() == before, attack.name


def test_random_numbers_differ_from_one_program_to_the_next(attacked: AttackedJudge) -> None:
    code = "import random, uuid, numpy, secrets\nprint(random.random(), uuid.uuid4(), numpy.random.rand(), secrets.token_hex())"
    limits = {"memory_bytes": 512 * MIB, "wall_time_s": 60.0}
    verdicts = attacked.server.judge_batch([python(code, {"number": number}, **limits) for number in range(6)])
    words = [word for verdict in verdicts for word in verdict["stdout"].split()]
    assert len(words) == len(set(words)) == 24


def test_a_program_that_overwrites_its_binary_does_not_spoil_the_next_run_of_it(attacked: AttackedJudge) -> None:
    code = (
        "#include <cstdio>\n#include <unistd.h>\nint main(int, char **argv) {\n"
        '  puts("honest");\n  unlink(argv[0]);\n  FILE *file = fopen(argv[0], "w");\n'
        '  if (file) { fputs("#!/bin/sh\\necho poisoned\\n", file); fclose(file); }\n}'
    )
    submission = {"language": "cpp", "code": code, "limits": LIMITS}
    tests = [{"expected_output": "honest"}] * 3
    for _ in range(2):
        verdict = attacked.server.judge(**submission, tests=tests)
        assert (verdict["status"], len(verdict["tests"])) == ("accepted", 3), verdict


def test_a_secret_of_one_program_is_not_in_the_memory_of_the_next(attacked: AttackedJudge) -> None:
    secret = python(f"secret = {attacked.canary!r} * 100000\nimport json\njson.loads(json.dumps([secret]))", {})
    search = """
    words = []
    for line in open("/proc/self/maps"):
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if "rw" in line.split()[1] and "[v" not in line:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                words += CANARY.findall(memory.read(end - start))
    say(f"reached: {words}") if words else say("done")
    """
    for _ in range(3):
        assert attacked.server.judge(**secret)["status"] == "accepted"
        assert attacked.server.judge(**python(search, {}))["stdout"] == "done\n"


PASS_DESCRIPTORS = """
held = []
null = os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [null] * 100)
except OSError as error:
    say(f"refused: {error}")
time.sleep(2)
say("done")
"""


def test_a_flood_of_passed_descriptors_does_not_stop_the_sessions_of_others(attacked: AttackedJudge) -> None:
    session = Session(attacked.server)
    assert session.cell("x = 1")["status"] == "accepted"
    http = attacked.server.http
    with httpx.Client(base_url=http.base_url, headers=http.headers, timeout=100) as other, ThreadPoolExecutor() as pool:
        flood = pool.submit(other.post, "/v1/submissions", json=python(PASS_DESCRIPTORS, {}))
        attacked.server.wait_until_running()
        time.sleep(0.5)
        cells = [session.cell("x") for _ in range(3)]
        verdict = flood.result().json()
    session.close()
    assert [cell["status"] for cell in cells] == ["accepted"] * 3, cells
    assert "refused" in verdict["stdout"]
    assert verdict["stdout"].endswith("done\n"), verdict


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("isolation", ["A", "B"])
def test_honest_programs_keep_their_verdicts_under_four_times_overload(tmp_path: Path, isolation: str) -> None:
    compute = "x = 0\nfor i in range(2_000_000): x += i\nprint(x)"
    arguments = ["--num-slots", "8", "--spare-slots", "0", "--max-cpu-time-s", "3", "--max-wall-time-s", "60"]
    with running_judge(tmp_path, *arguments, isolation=isolation, ordinary_user=isolation == "B") as server:
        alone = server.judge(code=compute)
        limits = {"cpu_time_s": 3 * alone["cpu_time_s"] + 0.2, "wall_time_s": 60.0}
        honest = [
            {"id": str(i), "code": compute, "expected_output": alone["stdout"], "limits": limits} for i in range(10)
        ]
        burning = [
            {"id": f"burning {i}", "code": "import os\nos.fork()\nwhile True: pass", "limits": {"cpu_time_s": 0.3}}
            for i in range(10)
        ]
        verdicts = server.judge_batch([item for pair in zip(honest, burning, strict=True) for item in pair])
    statuses = {verdict["id"]: verdict["status"] for verdict in verdicts}
    assert {status for name, status in statuses.items() if name.startswith("burning")} == {"time_limit_exceeded"}
    assert {status for name, status in statuses.items() if not name.startswith("burning")} == {"accepted"}
