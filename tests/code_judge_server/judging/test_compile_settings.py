"""Settings for compilers and their cache, in the strongest tier and in the weakest."""

import shutil
from pathlib import Path

import pytest
from judge_in_process import JudgeInProcess, judge_in_process

from code_judge_server.languages import LanguageRules, PrecompiledHeaderRules
from code_judge_server.schemas import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")]

MIB = 1024 * 1024
HUNGRY = "int table[] = {" + "1, " * 800_000 + "};\nint main(void) { return table[0] - 1; }"
"""Source whose compiler takes 140 MiB, and most of a second; the program takes three."""
LARGE = "char block[700000] = {%d};\nint main(void) { return 0; }"
"""Source whose program has 0.7 MiB: one fits into a cache of one MiB, two into a cache of two."""
WITH_HEADER = LanguageRules(
    source="a.c",
    compile=("gcc", "-o", "a", "a.c"),
    artifact="a",
    run=("./a",),
    precompiled_header=PrecompiledHeaderRules(
        header="stddef.h", compile=("gcc", "-x", "c-header", "-o", "header.gch", "header.h")
    ),
)


async def compile_large(judge: JudgeInProcess, *numbers: int) -> list[Verdict]:
    verdicts = [await judge.verdict(language="c", code=LARGE % number) for number in numbers]
    assert {verdict.status for verdict in verdicts} == {"accepted"}
    return verdicts


def num_compilations(judge: JudgeInProcess) -> int:
    return sum(job.argv[0].endswith("gcc") for job in judge.jobs)


@pytest.mark.parametrize("tier", ["A", "D"])
@pytest.mark.parametrize(("allowed_mb", "status"), [(48, "compile_error"), (512, "accepted")])
async def test_a_compiler_gets_the_memory_that_the_settings_allow(
    tmp_path: Path, tier: str, allowed_mb: int, status: str
) -> None:
    async with judge_in_process(tmp_path, isolation=tier, compile_memory_mb=allowed_mb, max_memory_mb=64) as judge:
        verdict = await judge.verdict(language="c", code=HUNGRY)
        modest = await judge.verdict(language="c", code="int main(void) { return 0; }")
    assert verdict.status == status
    if status == "compile_error":
        most_mb = 64 if tier == "A" else 512  # tier D looks only now and then
        assert 48 * MIB <= verdict.peak_memory_bytes < most_mb * MIB
        assert "killed" in verdict.stderr.lower()
    assert modest.status == "accepted"


@pytest.mark.parametrize("tier", ["A", "D"])
@pytest.mark.parametrize(("cache_mb", "expected"), [(0, 3), (1, 3), (2, 2)])
async def test_the_compile_cache_holds_as_much_as_the_settings_allow(
    tmp_path: Path, tier: str, cache_mb: int, expected: int
) -> None:
    async with judge_in_process(tmp_path, isolation=tier, compile_cache_mb=cache_mb) as judge:
        first, _, repeated = await compile_large(judge, 1, 2, 1)
    assert num_compilations(judge) == expected
    assert (first.compile_time_s == repeated.compile_time_s) == (expected == 2), "a kept program tells its own time"


@pytest.mark.parametrize(("cache_mb", "expected"), [(0, 2), (1, 1)])
async def test_one_program_is_kept_if_it_fits(tmp_path: Path, cache_mb: int, expected: int) -> None:
    async with judge_in_process(tmp_path, compile_cache_mb=cache_mb) as judge:
        await compile_large(judge, 1, 1)
    assert num_compilations(judge) == expected


@pytest.mark.parametrize(("cache_mb", "expected"), [(0, 0), (4, 1)])
async def test_without_a_compile_cache_no_header_is_precompiled(tmp_path: Path, cache_mb: int, expected: int) -> None:
    async with judge_in_process(tmp_path, compile_cache_mb=cache_mb, languages={"headed": WITH_HEADER}) as judge:
        for number in range(3):
            code = f"#include <stddef.h>\nint main(void) {{ return {number} - {number}; }}"
            assert (await judge.verdict(language="headed", code=code)).status == "accepted"
    assert sum("c-header" in job.argv for job in judge.jobs) == expected
