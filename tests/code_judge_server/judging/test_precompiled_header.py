"""A precompiled header, and the sources that use it."""

import asyncio
import dataclasses
import shutil
from typing import Any

import pytest
from judge_in_process import JudgeInProcess

from code_judge_server.judging.precompiled_header import PrecompiledHeader
from code_judge_server.languages import PrecompiledHeaderRules
from code_judge_server.sandbox.executor import ExecutorError, Job, JobLimits, Outcome

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=20, wall_time_s=60, memory_bytes=512 * MIB, output_bytes=MIB, max_tasks=32, disk_bytes=128 * MIB
)
GXX = shutil.which("g++") or "g++"
SOURCE = b"#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n"


def rules(**change: Any) -> PrecompiledHeaderRules:
    """A header that takes less time to compile than that of the table."""
    command = (GXX, "-std=c++17", "-O2", "-x", "c++-header", "-o", "header.gch", "header.h")
    return PrecompiledHeaderRules(**{"header": "vector", "compile": command, **change})


def compilation(source: bytes = SOURCE) -> Job:
    """Return a job whose stderr lists the headers as `-H` does: `!` before a used precompiled header."""
    argv = (GXX, "-std=c++17", "-O2", "-H", "-o", "main", "main.cpp")
    return Job(argv=argv, limits=LIMITS, files={"main.cpp": source}, collect=("main",), collect_bytes=MIB)


async def with_header(header: PrecompiledHeader, source: bytes = SOURCE) -> Job:
    """Wait until the header is ready."""
    async with asyncio.timeout(60):
        while (job := header.apply_to(compilation(source), source)) == compilation(source):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    return job


class BrokenExecutor(JudgeInProcess):
    """Executor that fails once."""

    def __init__(self, working: JudgeInProcess) -> None:
        self.working = working
        self.num_failures = 0

    async def execute(self, job: Job) -> Outcome:
        if self.num_failures == 0:
            self.num_failures = 1
            raise ExecutorError("no slot")
        return await self.working.execute(job)


async def test_the_compiler_uses_the_header_once_it_is_ready(fresh_judge: JudgeInProcess) -> None:
    header = PrecompiledHeader(rules(), fresh_judge, limits=LIMITS, max_bytes=256 * MIB)
    before = await fresh_judge.execute(header.apply_to(compilation(), SOURCE))
    after = await fresh_judge.execute(await with_header(header))
    assert (before.exit_code, after.exit_code) == (0, 0)
    assert b"! .precompiled/vector.gch" not in before.stderr
    assert b"! .precompiled/vector.gch" in after.stderr
    assert before.files == after.files
    assert sum("c++-header" in job.argv for job in fresh_judge.jobs) == 1


async def test_an_error_after_the_header_is_reported_with_its_line(fresh_judge: JudgeInProcess) -> None:
    header = PrecompiledHeader(rules(), fresh_judge, limits=LIMITS, max_bytes=256 * MIB)
    source = b"#include <vector>\n\nint main() { return std::vector<int>{0}[0] }\n"
    outcome = await fresh_judge.execute(await with_header(header, source))
    assert outcome.exit_code == 1
    assert b"main.cpp:3:43: error: expected" in outcome.stderr


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        (b"// a comment\n/* an *other* **/ \n\n  #  include  <vector>\n", True),
        (b"#include <vector>", True),
        (b"#define vector list\n#include <vector>\n", False),
        (b'#pragma GCC optimize("O3")\n#include <vector>\n', False),
        (b"#include <list>\n#include <vector>\n", False),
        (b"#include <vectors>\n", False),
        (b'#include "vector"\n', False),
        (b"int a;\n#include <vector>\n", False),
        (b"/* #include <vector> ", False),
        (b"/*" * 2_000_000, False),
        (b"/**/ " * 1_000_000, False),
        (b"", False),
    ],
)
async def test_it_is_for_sources_that_begin_with_it(fresh_judge: JudgeInProcess, source: bytes, taken: bool) -> None:
    header = PrecompiledHeader(rules(), fresh_judge, limits=LIMITS, max_bytes=256 * MIB)
    header.apply_to(compilation(source), source)
    await asyncio.sleep(0)
    assert [job.argv[3:5] for job in fresh_judge.jobs] == [("-x", "c++-header")] * taken
    if taken:
        await with_header(header)


@pytest.mark.parametrize(
    ("change", "max_bytes"),
    [
        ({"compile": (GXX, "no-such-file")}, 256 * MIB),
        ({"compile": (GXX, "--version")}, 256 * MIB),
        ({}, 1000),
        ({}, 0),
    ],
    ids=["it fails", "it makes nothing", "too large", "none is wanted"],
)
async def test_without_it_compilers_go_on_as_before(
    fresh_judge: JudgeInProcess, change: dict[str, Any], max_bytes: int
) -> None:
    header = PrecompiledHeader(rules(**change), fresh_judge, limits=LIMITS, max_bytes=max_bytes)
    for _ in range(3):
        assert header.apply_to(compilation(), SOURCE) == compilation()
        await fresh_judge.execute(compilation(b"int main() {}"))
    assert sum("main.cpp" not in job.argv for job in fresh_judge.jobs) == (max_bytes > 0)


async def test_a_failed_compilation_of_the_header_is_retried(fresh_judge: JudgeInProcess) -> None:
    executor = BrokenExecutor(fresh_judge)
    header = PrecompiledHeader(rules(), executor, limits=LIMITS, max_bytes=256 * MIB)
    await with_header(header)
    assert executor.num_failures == 1


async def test_files_where_the_header_would_be_are_left_alone(fresh_judge: JudgeInProcess) -> None:
    header = PrecompiledHeader(rules(), fresh_judge, limits=LIMITS, max_bytes=64 * MIB)
    await with_header(header)
    job = compilation()
    for path in (".precompiled", ".precompiled/vector.gch"):
        theirs = dataclasses.replace(job, files={**job.files, path: b"theirs"})
        assert header.apply_to(theirs, SOURCE) == theirs
