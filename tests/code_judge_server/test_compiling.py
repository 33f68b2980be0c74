"""Compiled languages: in the jail, and once for equal sources."""

import base64
import sys
from pathlib import Path

import pytest
from judge_in_process import JudgeInProcess, judge_in_process

from code_judge_server.schemas import VerdictStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_checker_may_be_compiled_and_is_compiled_once(fresh_judge: JudgeInProcess) -> None:
    code = "#include <stdio.h>\nint main(int n, char **a) { FILE *f = fopen(a[2], \"r\"); return fgetc(f) != 'y'; }"
    checker = {"kind": "program", "code": code, "language": "c"}
    verdict = await fresh_judge.verdict(code="print(input())", tests=[{"stdin": "y"}, {"stdin": "n"}], checker=checker)
    assert [run.status for run in verdict.tests] == ["accepted", "wrong_answer"]
    assert ["gcc" in job.argv[0] for job in fresh_judge.jobs].count(True) == 1


async def test_the_compiler_sees_the_files_too(fresh_judge: JudgeInProcess) -> None:
    code = '#include "answer.h"\n#include <stdio.h>\nint main(void) { printf("%d", ANSWER); }'
    files = {"answer.h": base64.b64encode(b"#define ANSWER 42").decode()}
    verdict = await fresh_judge.verdict(code=code, language="c", files=files, expected_output="42")
    assert verdict.status == "accepted"


async def test_equal_sources_are_compiled_once(fresh_judge: JudgeInProcess) -> None:
    source = {"language": "c", "code": '#include <stdio.h>\nint main(void) { puts("a"); }', "expected_output": "a"}
    first, second = await fresh_judge.verdict(**source), await fresh_judge.verdict(**source)
    assert (first.status, second.status) == ("accepted", "accepted")
    assert (len(fresh_judge.jobs), first.compile_time_s) == (3, second.compile_time_s)
    assert first.compile_time_s > 0


async def test_equal_sources_that_do_not_compile_are_refused_once(fresh_judge: JudgeInProcess) -> None:
    first, second = [await fresh_judge.verdict(language="c", code="int main(") for _ in range(2)]
    assert (first, len(fresh_judge.jobs)) == (second, 1)
    assert (first.status, first.exit_code, first.cpu_time_s) == ("compile_error", 1, 0)
    assert "main.c" in first.stderr


async def test_flags_files_and_limits_tell_sources_apart(fresh_judge: JudgeInProcess) -> None:
    source = {"language": "c", "code": "int main(void) { return 0; }"}
    for change in ({}, {"files": {"a.h": ""}}, {"files": {"b.h": ""}}, {"limits": {"compile_time_s": 5}}, {}):
        assert (await fresh_judge.verdict(**source, **change)).status is VerdictStatus.ACCEPTED
    assert [job.argv[0].endswith("gcc") for job in fresh_judge.jobs].count(True) == 4


@pytest.mark.parametrize("isolation", ["A", "D"])
async def test_a_compiler_that_takes_too_long_is_a_compile_error(tmp_path: Path, isolation: str) -> None:
    # In many processes it gets so much of a busy machine that nobody can say that it was kept waiting.
    code = "import os\nfor _ in range(5): os.fork()\nwhile True: pass"
    endless = {"source": "a", "compile": [sys.executable, "-c", code], "artifact": "b", "run": ["./b"]}
    async with judge_in_process(tmp_path, isolation=isolation, languages={"endless": endless}) as judge:
        verdict = await judge.verdict(language="endless", code="", limits={"compile_time_s": 2})
        while verdict.status == "internal_error":  # others had the cores, which says nothing of the source
            assert "of CPU time in" in verdict.stderr
            verdict = await judge.verdict(language="endless", code="", limits={"compile_time_s": 2})
    assert verdict.status == "compile_error"
    assert "killed at a limit" in verdict.stderr


async def test_a_source_at_which_the_compiler_waits_for_ever_is_a_compile_error(fresh_judge: JudgeInProcess) -> None:
    """`/dev/stdout` is the compiler's own pipe, from which it may not read; a fifo would do, but nobody can create one."""
    code = '#include "/dev/stdout"\nint main(void) { return 0; }'
    verdict = await fresh_judge.verdict(language="c", code=code, limits={"compile_time_s": 0.5})
    assert verdict.status == "compile_error"
