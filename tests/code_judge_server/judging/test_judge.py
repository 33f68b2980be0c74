"""Many test cases for one program, checkers of the user, files in and out, and the limits applied."""

import base64
from pathlib import Path

import pytest
from judge_in_process import JudgeInProcess, judge_in_process

DOUBLE = "n = input()\nprint(2 * int(n))"
TESTS = [{"stdin": str(i), "expected_output": str(2 * i)} for i in range(4)]
WRONG = {"stdin": "1", "expected_output": "3"}
CRASH = {"stdin": "x", "expected_output": "0"}
EVEN = "import sys\nsys.exit(0 if int(open(sys.argv[2]).read()) % 2 == 0 else 1)"

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_test_case_is_a_run_of_its_own(fresh_judge: JudgeInProcess) -> None:
    code = DOUBLE + "\nimport os\nassert not os.path.exists('left')\nopen('left', 'w').close()"
    verdict = await fresh_judge.verdict(code=code, tests=TESTS)
    assert verdict.status == "accepted"
    assert [(run.status, run.stdout) for run in verdict.tests] == [("accepted", f"{2 * i}\n") for i in range(4)]
    assert verdict.stdout == "6\n"
    assert verdict.cpu_time_s == pytest.approx(sum(run.cpu_time_s for run in verdict.tests))
    assert verdict.wall_time_s == pytest.approx(sum(run.wall_time_s for run in verdict.tests))
    assert verdict.peak_memory_bytes == max(run.peak_memory_bytes for run in verdict.tests)


async def test_the_first_failure_is_the_verdict_and_the_end(fresh_judge: JudgeInProcess) -> None:
    verdict = await fresh_judge.verdict(code=DOUBLE, tests=[TESTS[0], WRONG, CRASH, TESTS[1]])
    assert (verdict.status, verdict.stdout, verdict.exit_code) == ("wrong_answer", "2\n", 0)
    assert [run.status for run in verdict.tests] == ["accepted", "wrong_answer"]
    assert len(fresh_judge.jobs) == 2


async def test_all_test_cases_run_if_asked_and_the_first_failure_is_the_verdict(fresh_judge: JudgeInProcess) -> None:
    verdict = await fresh_judge.verdict(
        code=DOUBLE, tests=[TESTS[0], CRASH, WRONG, TESTS[1]], stop_at_first_failure=False
    )
    assert [run.status for run in verdict.tests] == ["accepted", "runtime_error", "wrong_answer", "accepted"]
    assert (verdict.status, verdict.exit_code) == ("runtime_error", 1)
    assert "ValueError" in verdict.stderr


async def test_limits_are_for_each_test_case(fresh_judge: JudgeInProcess) -> None:
    code = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    verdict = await fresh_judge.verdict(code=code, tests=[{}] * 3, limits={"cpu_time_s": 0.7})
    assert verdict.status == "accepted"
    assert verdict.cpu_time_s > 1.2


async def test_one_run_has_no_list_of_test_cases(fresh_judge: JudgeInProcess) -> None:
    verdict = await fresh_judge.verdict(code=DOUBLE, stdin="2", expected_output="4")
    assert (verdict.status, verdict.tests) == ("accepted", [])


async def test_many_test_cases_share_the_room_for_outputs(tmp_path: Path) -> None:
    async with judge_in_process(tmp_path, max_reply_chars=100) as judge:
        verdict = await judge.verdict(code="print('x' * 80)", tests=[{"expected_output": "x" * 80}] * 4)
    assert verdict.status == "accepted"
    assert (len(verdict.stdout), verdict.stdout_truncated) == (81, False)
    assert [(len(run.stdout), run.stdout_truncated) for run in verdict.tests] == [(25, True)] * 4


async def test_the_expected_output_is_in_no_job_of_the_program(fresh_judge: JudgeInProcess) -> None:
    secret = "5f1d9c"
    await fresh_judge.verdict(code="print(1)", tests=[{"stdin": "a", "expected_output": secret}])
    await fresh_judge.verdict(code="print(1)", expected_output=secret, checker={"kind": "tokens"})
    checker = {"kind": "program", "code": EVEN}
    await fresh_judge.verdict(code="print(2)", expected_output=secret, checker=checker)
    assert [secret in repr(job) for job in fresh_judge.jobs] == [False, False, False, True]


@pytest.mark.parametrize(("number", "status"), [(2, "accepted"), (3, "wrong_answer")])
async def test_a_program_may_be_the_checker(fresh_judge: JudgeInProcess, number: int, status: str) -> None:
    verdict = await fresh_judge.verdict(code=f"print({number})", checker={"kind": "program", "code": EVEN})
    assert (verdict.status, verdict.stdout, verdict.exit_code) == (status, f"{number}\n", 0)


async def test_a_checker_reads_input_output_and_expected_output(fresh_judge: JudgeInProcess) -> None:
    code = "import sys\nsys.exit([open(path, 'rb').read() for path in sys.argv[1:]] != [b'in', b'\\xffout', b'\\xc3\\xa4'])"
    program = "import sys\nsys.stdout.buffer.write(b'\\xff' + b'out')"
    checker = {"kind": "program", "code": code}
    verdict = await fresh_judge.verdict(code=program, stdin="in", expected_output="\u00e4", checker=checker)
    assert (verdict.status, verdict.stdout_invalid_utf8) == ("accepted", True)


async def test_a_program_that_fails_is_not_shown_to_the_checker(fresh_judge: JudgeInProcess) -> None:
    verdict = await fresh_judge.verdict(code="print(2)\nexit(3)", checker={"kind": "program", "code": EVEN})
    assert (verdict.status, len(fresh_judge.jobs)) == ("runtime_error", 1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import sys\nprint('bad data', file=sys.stderr)\nexit(3)",
            "exit code 3; exit code 0 accepts and 1 refuses. It wrote: bad",
        ),
        ("import os\nos.kill(os.getpid(), 11)", "signal 11"),
        ("while True: pass", "_time"),
        ("print('x' * 2_000_000)", "output"),
    ],
)
async def test_a_checker_that_fails_is_an_internal_error_that_says_so(
    fresh_judge: JudgeInProcess, code: str, said: str
) -> None:
    verdict = await fresh_judge.verdict(code="print(2)", checker={"kind": "program", "code": code})
    assert verdict.status == "internal_error"
    assert said in verdict.stderr


async def test_a_checker_that_does_not_compile_is_an_internal_error_and_nothing_runs(
    fresh_judge: JudgeInProcess,
) -> None:
    verdict = await fresh_judge.verdict(
        code="print(2)", checker={"kind": "program", "code": "int main(", "language": "c"}
    )
    assert verdict.status == "internal_error"
    assert "main.c" in verdict.stderr
    assert len(fresh_judge.jobs) == 1


async def test_files_are_written_and_collected(fresh_judge: JudgeInProcess) -> None:
    code = (
        "import os\nos.mkdir('out')\nopen('out/b', 'wb').write(open('in/a', 'rb').read() * 2)\n"
        "os.symlink('/etc/passwd', 'c')"
    )
    content = bytes(range(256))
    verdict = await fresh_judge.verdict(
        code=code, files={"in/a": base64.b64encode(content).decode()}, collect=["out/b", "c", "missing"]
    )
    assert verdict.files == {"out/b": content * 2}
    assert verdict.model_dump(mode="json")["files"] == {"out/b": base64.b64encode(content * 2).decode()}


async def test_files_too_large_to_collect_are_left_out(tmp_path: Path) -> None:
    async with judge_in_process(tmp_path, max_collect_mb=1) as judge:
        code = "open('a', 'wb').write(b'x' * 2_000_000)\nopen('b', 'wb').write(b'x')"
        verdict = await judge.verdict(code=code, collect=["a", "b"])
    assert verdict.files == {"b": b"x"}


async def test_limits_are_lowered_to_the_maxima_and_echoed(tmp_path: Path) -> None:
    async with judge_in_process(
        tmp_path, max_cpu_time_s=2, default_cpu_time_s=1, max_wall_time_s=20, max_memory_mb=128, max_tasks=32
    ) as judge:
        asked = {"cpu_time_s": 100, "memory_bytes": 64 << 20, "disk_bytes": 4096}
        named = (await judge.verdict(code="", limits=asked)).limits
        default = (await judge.verdict(code="")).limits
    assert named is not None
    assert default is not None
    assert (named.cpu_time_s, named.memory_bytes, named.disk_bytes, named.max_tasks) == (2, 64 << 20, 4096, 32)
    assert (default.cpu_time_s, default.memory_bytes, default.wall_time_s) == (1, 128 << 20, 20)


@pytest.mark.parametrize(
    ("code", "status", "signal"),
    [
        ("import os; os.abort()", "runtime_error", 6),
        ("import os; os.kill(os.getpid(), 9)", "runtime_error", 9),
        ("import os, signal; signal.signal(25, signal.SIG_DFL); os.kill(os.getpid(), 25)", "output_limit_exceeded", 25),
        (
            "import signal, os; signal.signal(25, 0)\nopen('f', 'wb').truncate(9_000_000)",
            "output_limit_exceeded",
            25,
        ),
    ],
)
async def test_a_signal_is_reported(fresh_judge: JudgeInProcess, code: str, status: str, signal: int) -> None:
    verdict = await fresh_judge.verdict(code=code, limits={"disk_bytes": 1_000_000})
    assert (verdict.status, verdict.signal, verdict.exit_code) == (status, signal, None)


@pytest.mark.parametrize("isolation", ["A", "D"])
async def test_the_imports_of_a_program_and_its_modules_choose_the_interpreter(tmp_path: Path, isolation: str) -> None:
    chosen = {("print(1)", ""): "bare", ("import numpy", ""): "sci", ("import helper", "from sympy import *"): "sympy"}
    async with judge_in_process(tmp_path, isolation=isolation, preloads={}) as judge:
        for (code, module), preload in chosen.items():
            judge.forget()
            helper = base64.b64encode(module.encode()).decode()
            verdict = await judge.verdict(code=code, files={"helper.py": helper})
            assert verdict.status == "accepted"
            assert judge.jobs[0].preload == (preload if judge.preloads else None)
