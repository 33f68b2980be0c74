"""Interactive problems: a program and the user's interactor, joined by pipes, in two jails."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from judge_in_process import JudgeInProcess, judge_in_process

from code_judge_server.languages import offered_languages, wrong_fields
from code_judge_server.schemas import Interactor, Submission, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")
STRONGEST = "A" if os.geteuid() == 0 else "B"

GUESSING = """
import sys
secret = int(open(sys.argv[1]).read())
print(open(sys.argv[3]).read().strip(), flush=True)
for attempt in range(12):
    guess = int(input())
    print('=' if guess == secret else '<' if secret < guess else '>', flush=True)
    if guess == secret:
        sys.exit(0)
sys.exit('too many guesses')
"""
BISECTING = """
low, high = 1, int(input())
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    answer = input()
    if answer == '=':
        break
    low, high = (low, middle - 1) if answer == '<' else (middle + 1, high)
"""
IN_C = r"""
#include <stdio.h>
int main(void) {
    int low = 1, high;
    char answer;
    scanf("%d", &high);
    for (;;) {
        int middle = (low + high) / 2;
        printf("%d\n", middle);
        fflush(stdout);
        if (scanf(" %c", &answer) != 1 || answer == '=') return 0;
        if (answer == '<') high = middle - 1; else low = middle + 1;
    }
}
"""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[STRONGEST, pytest.param("B", marks=pytest.mark.slow), "C", "D"]
)
async def judge(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[JudgeInProcess]:
    folder = tmp_path_factory.mktemp("judge")
    async with judge_in_process(
        folder, isolation=request.param, num_slots=2, spare_slots=1, max_wall_time_s=10, default_memory_mb=96
    ) as judge:
        yield judge


async def play(judge: JudgeInProcess, code: str, interactor: str = GUESSING, **submission: Any) -> Verdict:
    tests = submission.pop("tests", [{"stdin": "37", "expected_output": "1000"}])
    return await judge.verdict(code=code, interactor={"code": interactor}, tests=tests, **submission)


@pytest.mark.parametrize(("language", "code"), [("python", BISECTING), ("c", IN_C)])
async def test_a_program_that_plays_well_is_accepted_on_each_test(
    judge: JudgeInProcess, language: str, code: str
) -> None:
    tests = [{"stdin": str(secret), "expected_output": "1000"} for secret in (1, 500, 999)]
    verdict = await play(judge, code, language=language, tests=tests)
    assert (verdict.status, [run.status for run in verdict.tests]) == ("accepted", ["accepted"] * 3)
    assert (verdict.stdout, verdict.stderr) == ("", "")


async def test_a_program_may_open_its_streams_by_name(judge: JudgeInProcess) -> None:
    by_name = "import sys\nsys.stdin, sys.stdout = open('/dev/stdin'), open('/dev/stdout', 'w')\n" + BISECTING
    verdict = await play(judge, by_name)
    assert verdict.status == "accepted", verdict.stderr


async def test_an_interactor_may_be_compiled_and_the_program_not_in_python(judge: JudgeInProcess) -> None:
    interactor = r"""
    #include <stdio.h>
    int main(int n, char **a) {
        int secret, guess;
        fscanf(fopen(a[1], "r"), "%d", &secret);
        printf("%d\n", 10);
        fflush(stdout);
        if (scanf("%d", &guess) != 1) return 4;
        fprintf(stderr, "guessed %d", guess);
        return guess == secret ? 0 : 2;
    }"""
    for secret, status in ((5, "accepted"), (6, "wrong_answer")):
        verdict = await judge.verdict(
            language="bash", code="read n; echo 5", stdin=str(secret), interactor={"language": "c", "code": interactor}
        )
        assert (verdict.status, verdict.stderr) == (status, "" if status == "accepted" else "interactor: guessed 5")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (
            "n = int(input())\nfor i in range(1, n):\n    print(i, flush=True)\n    if input() == '=': break",
            "wrong_answer",
        ),
        ("print(1, flush=True)", "wrong_answer"),  # it leaves before the end
        ("pass", "wrong_answer"),
        ("input()\n1 / 0", "runtime_error"),
        ("input()\nimport os\nos.abort()", "runtime_error"),
        ("while True: pass", "time_limit_exceeded"),
        ("input(); input()", "time_limit_exceeded"),  # each waits for the other
    ],
    ids=["bad play", "leaves early", "says nothing", "raises", "aborts", "spins", "waits"],
)
async def test_failures_of_the_program_decide_its_verdict(judge: JudgeInProcess, code: str, status: str) -> None:
    verdict = await play(judge, code, limits={"cpu_time_s": 1, "wall_time_s": 2})
    assert verdict.status == status, verdict.stderr


@pytest.mark.parametrize(
    ("interactor", "expected_message"),
    [
        ("1 / 0", "it ended with an exception"),
        ("import sys; sys.exit(2)", "it ended with exit code 2; exit code 0 accepts and 1 refuses"),
        ("import sys; sys.exit(3)", "it ended with exit code 3; exit code 0 accepts and 1 refuses"),
        ("import os; os.abort()", "it was ended by signal 6"),
        ("int main(", "interactor: "),
    ],
)
async def test_an_interactor_that_fails_says_nothing_of_the_program(
    judge: JudgeInProcess, interactor: str, expected_message: str
) -> None:
    language = "c" if interactor.startswith("int main") else "python"
    verdict = await judge.verdict(code="print(1)", interactor={"language": language, "code": interactor})
    assert (verdict.status, expected_message in verdict.stderr) == ("internal_error", True), verdict.stderr


async def test_a_program_that_floods_the_interactor_gets_output_limit_exceeded(judge: JudgeInProcess) -> None:
    flood = "import os\nwhile True: os.write(1, bytes(1 << 16))"
    reads_all = "import os\nheld = []\nwhile chunk := os.read(0, 1 << 16): held.append(chunk)"
    verdict = await play(judge, flood, reads_all, limits={"cpu_time_s": 2, "wall_time_s": 10})
    assert (verdict.status, "it was killed at a limit" in verdict.stderr) == ("output_limit_exceeded", True), verdict
    takes_all = "held = []\nwhile True: held.append(bytearray(b'x') * (1 << 22))"
    verdict = await play(judge, "print(1, flush=True)\ninput()", takes_all, limits={"cpu_time_s": 2, "wall_time_s": 10})
    assert (verdict.status, "it was killed at a limit" in verdict.stderr) == ("internal_error", True), verdict


@pytest.mark.parametrize("judge", [STRONGEST], indirect=True)
async def test_a_program_that_prints_a_few_kilobytes_floods_nobody(judge: JudgeInProcess) -> None:
    verdict = await play(judge, "print('x' * 6000, flush=True)\ninput()", "while True: pass")
    assert (verdict.status, "it was killed at a limit" in verdict.stderr) == ("internal_error", True), verdict


async def test_the_program_sees_nothing_of_the_interactor(judge: JudgeInProcess) -> None:
    if judge.tier == "D":
        pytest.skip("tier D isolates nothing")
    look = "import os, sys\nsys.exit(os.path.exists('input.txt') or any('secret' in open(f'/proc/{p}/cmdline').read() for p in"
    look += " os.listdir('/proc') if p.isdigit()))"
    interactor = "import subprocess, sys\nsubprocess.run(['sh', '-c', 'sleep 0.3 # secret'])"
    verdict = await judge.verdict(code=look, interactor={"code": interactor}, stdin="secret")
    assert verdict.status == "accepted"


async def test_many_conversations_at_once_wait_for_pairs_of_slots(judge: JudgeInProcess) -> None:
    verdicts = await asyncio.gather(
        *(play(judge, BISECTING) for _ in range(6)), *(judge.verdict(code="1") for _ in range(6))
    )
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 12


async def test_a_long_conversation_comes_to_its_end(judge: JudgeInProcess) -> None:
    interactor = (
        "import sys\nfor i in range(2000):\n    print(i, flush=True)\n    if int(input()) != i + 1: sys.exit(1)"
    )
    verdict = await judge.verdict(
        code="for _ in range(2000): print(int(input()) + 1, flush=True)", interactor={"code": interactor}
    )
    assert (verdict.status, verdict.wall_time_s < 5) == ("accepted", True)


async def test_one_slot_is_too_few(tmp_path: Path) -> None:
    async with judge_in_process(tmp_path, isolation="D", num_slots=1, spare_slots=0) as judge:
        verdict = await play(judge, BISECTING)
    assert (verdict.status, "raise num_slots or spare_slots" in verdict.stderr) == ("internal_error", True)


async def test_an_interactor_stands_in_the_place_of_a_checker() -> None:
    with pytest.raises(ValueError, match="decides alone"):
        Submission.model_validate({"id": "a", "code": "", "interactor": {"code": ""}, "checker": {"kind": "exact"}})


async def test_the_language_of_an_interactor_is_checked() -> None:
    submission = Submission(id="a", code="", interactor=Interactor(language="cobol", code=""))
    assert [error.field for error in wrong_fields(submission, offered_languages({}))] == ["interactor.language"]
