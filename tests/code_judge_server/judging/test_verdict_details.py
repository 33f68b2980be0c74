"""Details of a verdict besides the program's own end: failing checkers and compilers, and the limits applied."""

import asyncio
import logging
import shutil
import sys
from pathlib import Path

import pytest
from judge_in_process import JudgeInProcess, judge_in_process
from scripted_executor import ScriptedExecutor, queue_on

from code_judge_server.schemas import Submission, VerdictStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")

TALKATIVE_CHECKER = {
    "kind": "program",
    "code": "import sys\nsys.stderr.write(open(sys.argv[3]).read() + 'z' * 500_000)\nsys.exit(2)",
}


async def test_output_of_a_checker_is_cut_like_that_of_a_program(tmp_path: Path) -> None:
    async with judge_in_process(tmp_path, max_reply_chars=1000) as judge:
        verdict = await judge.verdict(code="print(2)", expected_output="x", checker=TALKATIVE_CHECKER)
    assert verdict.status is VerdictStatus.INTERNAL_ERROR
    assert verdict.stderr_truncated
    assert len(verdict.stderr) < 1100


async def test_the_log_has_no_expected_output(fresh_judge: JudgeInProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        verdict = await fresh_judge.verdict(code="print(2)", expected_output="secret-5f1d", checker=TALKATIVE_CHECKER)
    assert "secret-5f1d" in verdict.stderr
    assert "exit code 2" in caplog.text
    assert "secret-5f1d" not in caplog.text


async def test_limits_are_reported_when_the_checker_fails(fresh_judge: JudgeInProcess) -> None:
    verdict = await fresh_judge.verdict(code="print(2)", checker=TALKATIVE_CHECKER, limits={"cpu_time_s": 0.75})
    assert verdict.limits is not None
    assert verdict.limits.cpu_time_s == 0.75


async def test_the_compiler_limit_is_reported(tmp_path: Path) -> None:
    async with judge_in_process(tmp_path, compile_time_s=7) as judge:
        reported = [(await judge.verdict(code="", limits=limits)).limits for limits in ({}, {"compile_time_s": 5})]
    assert [limits and limits.compile_time_s for limits in reported] == [7, 5]


async def test_limits_are_reported_for_a_compile_error(fresh_judge: JudgeInProcess) -> None:
    asked = {"cpu_time_s": 0.75, "memory_bytes": 2**40, "compile_time_s": 5}
    refused = await fresh_judge.verdict(language="c", code="int main(", limits=asked)
    run = await fresh_judge.verdict(code="", limits=asked)
    assert (refused.status, run.status) == (VerdictStatus.COMPILE_ERROR, VerdictStatus.ACCEPTED)
    assert refused.limits is not None
    assert (refused.limits.cpu_time_s, refused.limits.compile_time_s) == (0.75, 5)
    assert refused.limits == run.limits


async def test_limits_are_reported_for_a_cancelled_program() -> None:
    executor = ScriptedExecutor()
    queue = queue_on(executor)
    batch = queue.enqueue([Submission(id="a", code="hold it")], client="c", deadline_s=1)
    (verdict,) = await asyncio.wait_for(batch.all(), 60)
    assert verdict.status is VerdictStatus.CANCELLED
    assert verdict.limits is not None


async def test_a_starved_compiler_is_not_a_compile_error(tmp_path: Path) -> None:
    code = "import time\nwhile True:\n    time.sleep(0.01); start = time.process_time()"
    code += "\n    while time.process_time() < start + 0.001: pass"  # a tenth of the time, on whatever machine
    slow = {"source": "a", "compile": [sys.executable, "-c", code], "artifact": "b", "run": ["./b"]}
    async with judge_in_process(tmp_path, languages={"slow": slow}, compile_time_s=1.0) as judge:
        verdict = await judge.verdict(code="", language="slow")
    assert verdict.status is VerdictStatus.INTERNAL_ERROR
    assert "CPU time" in verdict.stderr


async def test_a_sleeping_compiler_is_a_compile_error(tmp_path: Path) -> None:
    sleepy = {"source": "a", "compile": [shutil.which("sleep"), "60"], "artifact": "b", "run": ["./b"]}
    async with judge_in_process(tmp_path, languages={"sleepy": sleepy}, compile_time_s=0.2) as judge:
        verdict = await judge.verdict(code="", language="sleepy")
    assert verdict.status is VerdictStatus.COMPILE_ERROR


async def test_the_most_and_longest_allowed_paths_are_accepted(fresh_judge: JudgeInProcess) -> None:
    files = {"/".join((f"{number:04}", *(letter * 200 for letter in "abcd"))): "" for number in range(1023)}
    collect = ["x" * 200 + f"/{number:04}" + "y" * 200 for number in range(63)]
    code = f"import os\nprint(len(os.listdir()))\nos.mkdir('{'x' * 200}'); open({collect[7]!r}, 'w').write('it')"
    verdict = await fresh_judge.verdict(code=code, files=files, collect=collect)
    assert (verdict.status, verdict.stdout) == ("accepted", "1024\n"), verdict.stderr
    assert verdict.files == {collect[7]: b"it"}
