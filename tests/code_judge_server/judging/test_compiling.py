"""Compiled languages: in the jail, and once for equal sources."""

import base64
import sys
from pathlib import Path

import pytest
from judge_in_process import JudgeInProcess, judge_in_process
from scripted_executor import ScriptedExecutor

from code_judge_server.judging.compile_cache import CompileCache
from code_judge_server.judging.compiling import CompileError, Compiler
from code_judge_server.languages import LanguageRules, offered_languages
from code_judge_server.sandbox.executor import Job, JobLimits, Outcome
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import VerdictStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = JobLimits(cpu_time_s=1, wall_time_s=1, memory_bytes=1, output_bytes=1, max_tasks=1, disk_bytes=1)


class FailingExecutor(ScriptedExecutor):
    """Ends each job with exit code 1."""

    num_jobs = 0

    async def execute(self, job: Job) -> Outcome:
        self.num_jobs += 1
        return Outcome(
            ending=Ending.EXITED, exit_code=1, signal=None, stdout=b"", stderr=b"", stdout_cut=False,
            stderr_cut=False, cpu_time_s=0.1, wall_time_s=0.1, peak_memory_bytes=1,
        )  # fmt: skip


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


async def test_flags_files_and_limits_distinguish_sources(fresh_judge: JudgeInProcess) -> None:
    source = {"language": "c", "code": "int main(void) { return 0; }"}
    for change in ({}, {"files": {"a.h": ""}}, {"files": {"b.h": ""}}, {"limits": {"compile_time_s": 5}}, {}):
        assert (await fresh_judge.verdict(**source, **change)).status is VerdictStatus.ACCEPTED
    assert [job.argv[0].endswith("gcc") for job in fresh_judge.jobs].count(True) == 4


@pytest.mark.parametrize(
    ("command", "probe"),
    [(["env", "A=1", "compiler"], None), (["sh", "-c", "compiler"], ["env", "A=1", "compiler", "--version"])],
    ids=["env", "shell"],
)
async def test_a_replaced_compiler_compiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], probe: list[str] | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    compiler = tmp_path / "compiler"
    compiler.touch(mode=0o755)
    row = LanguageRules.model_validate(
        {"source": "a", "compile": command, "artifact": "b", "run": ["./b"], "probe": probe}
    )
    rules = offered_languages({"x": row})["x"]
    executor = FailingExecutor()
    cache = CompileCache(1 << 20)
    compile_ = Compiler(executor, limits=LIMITS, max_artifact_bytes=1, max_header_bytes=0, cache=cache).program
    for content in ("old", "old", "newer"):
        if compiler.read_text() != content:
            compiler.write_text(content)
        with pytest.raises(CompileError, match=f"^{compiler} made no `b`"):
            await compile_(rules, "", {})
    assert executor.num_jobs == 2


@pytest.mark.parametrize("isolation", ["A", "D"])
async def test_a_compiler_that_takes_too_long_is_a_compile_error(tmp_path: Path, isolation: str) -> None:
    # Many processes get enough of a busy machine that the compiler cannot count as starved.
    code = "import os\nfor _ in range(5): os.fork()\nwhile True: pass"
    endless = {"source": "a", "compile": [sys.executable, "-c", code], "artifact": "b", "run": ["./b"]}
    async with judge_in_process(tmp_path, isolation=isolation, languages={"endless": endless}) as judge:
        verdict = await judge.verdict(language="endless", code="", limits={"compile_time_s": 2})
        while verdict.status == "internal_error":  # other processes had the cores: no fault of the source
            assert "of CPU time in" in verdict.stderr
            verdict = await judge.verdict(language="endless", code="", limits={"compile_time_s": 2})
    assert verdict.status == "compile_error"
    assert "killed at a limit" in verdict.stderr


async def test_a_source_at_which_the_compiler_waits_for_ever_is_a_compile_error(fresh_judge: JudgeInProcess) -> None:
    """`/dev/stdout` is the compiler's own pipe, from which it may not read; a fifo would do, but nobody can create one."""
    code = '#include "/dev/stdout"\nint main(void) { return 0; }'
    verdict = await fresh_judge.verdict(language="c", code=code, limits={"compile_time_s": 0.5})
    assert verdict.status == "compile_error"
