"""Programs of each language as people write them, in the tiers that this machine gives: input, files, errors, limits, threads.

A language whose programs are missing on the machine is skipped by name.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from judge_in_process import JudgeInProcess, judge_in_process
from language_programs import BROKEN, FAILING, FIRST, GREEDY, SUITES, WITH_A_FILE, WITH_THREADS

from code_judge_server.judging.language_probe import unusable_languages
from code_judge_server.languages import BUILT_IN, offered_languages

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
STRONGEST = "A" if os.geteuid() == 0 else "B"
NEED_EPOLL = {"javascript", "typescript", "jest", "go", "go_test"}
"""Languages that do not work for an ordinary user's judge without users of their own for programs."""
NEED_SOCKETS = {"typescript"}
"""Languages that do not work in tier C."""


def _rust_outside_of_home() -> dict[str, Any]:
    """Return a row with rustup's compiler itself: the one on the PATH is in the home folder of an ordinary installation."""
    if (rustc := shutil.which("rustc")) is None:
        return {}
    sysroot = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    row = BUILT_IN["rust"]
    assert row.compile is not None
    program = f"{sysroot}/bin/rustc"
    changed = row.model_copy(update={"compile": (program, *row.compile[1:]), "probe": (program, "--version")})
    return {"languages": {"rust": changed}, "read_only_paths": [Path(sysroot)]}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=dict.fromkeys([STRONGEST, "B", "C", "D"]))
async def judge(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[JudgeInProcess]:
    limits = {"max_cpu_time_s": 20, "default_cpu_time_s": 20, "max_memory_mb": 512}
    folder = tmp_path_factory.mktemp("judge")
    async with judge_in_process(folder, isolation=request.param, **limits, **_rust_outside_of_home()) as judge:
        yield judge


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def require(judge: JudgeInProcess) -> Callable[[str], None]:
    """Skip the test of a language that is missing on the machine or cannot work in the judge's tier."""
    offered = offered_languages(judge.settings.languages)
    limits = judge.settings.limit_policy.effective(judge.settings.default_limits)
    reasons = await unusable_languages(judge, offered, limits=limits)
    excused = set() if os.geteuid() == 0 else NEED_EPOLL
    if judge.tier == "C":
        excused = excused | NEED_SOCKETS
    # Node runs TypeScript from 22.6 on.
    assert {
        name for name, reason in reasons.items() if "bad option: --experimental-strip-types" not in reason
    } <= excused

    def require(name: str) -> None:
        if name not in offered or name in reasons:
            pytest.skip(reasons.get(name, f"this machine has no {name}"))

    return require


@pytest.mark.parametrize("name", FIRST)
async def test_a_program_reads_prints_and_takes_arguments(
    judge: JudgeInProcess, require: Callable[[str], None], name: str
) -> None:
    require(name)
    code, stdin, expected = FIRST[name]
    verdict = await judge.verdict(
        language=name,
        code=code,
        stdin=stdin,
        expected_output=expected,
        arguments=["x", "y z"],
        checker={"kind": "exact"},
    )
    assert (verdict.status, verdict.stderr) == ("accepted", "")


@pytest.mark.parametrize("judge", [STRONGEST, "C", "D"], indirect=True)
@pytest.mark.parametrize("name", WITH_A_FILE)
async def test_a_program_uses_a_file_beside_it(
    judge: JudgeInProcess, require: Callable[[str], None], name: str
) -> None:
    require(name)
    code, files = WITH_A_FILE[name]
    encoded = {path: base64.b64encode(text.encode()).decode() for path, text in files.items()}
    verdict = await judge.verdict(language=name, code=code, files=encoded)
    assert (verdict.status, verdict.stdout, verdict.stderr) == ("accepted", "42\n", "")


@pytest.mark.parametrize("judge", [STRONGEST], indirect=True)
@pytest.mark.parametrize("name", BROKEN)
async def test_a_compiler_says_where_a_program_is_wrong(
    judge: JudgeInProcess, require: Callable[[str], None], name: str
) -> None:
    require(name)
    code, message = BROKEN[name]
    verdict = await judge.verdict(language=name, code=code)
    assert (verdict.status, message in verdict.stderr + verdict.stdout) == ("compile_error", True), verdict


@pytest.mark.parametrize("judge", [STRONGEST], indirect=True)
@pytest.mark.parametrize("name", FAILING)
async def test_a_program_that_fails_says_why(judge: JudgeInProcess, require: Callable[[str], None], name: str) -> None:
    require(name)
    code, exit_code, message = FAILING[name]
    verdict = await judge.verdict(language=name, code=code)
    assert (verdict.status, verdict.exit_code, message in verdict.stderr + verdict.stdout) == (
        "runtime_error",
        exit_code,
        True,
    ), verdict


@pytest.mark.parametrize("judge", dict.fromkeys([STRONGEST, "B", "C"]), indirect=True)
@pytest.mark.parametrize("name", GREEDY)
async def test_a_program_has_the_memory_of_its_limit(
    judge: JudgeInProcess, require: Callable[[str], None], name: str
) -> None:
    require(name)
    verdict = await judge.verdict(language=name, code=GREEDY[name])
    assert verdict.status == "memory_limit_exceeded", verdict


@pytest.mark.parametrize("judge", [STRONGEST, "C"], indirect=True)
@pytest.mark.parametrize("name", WITH_THREADS)
async def test_a_program_may_have_threads(judge: JudgeInProcess, require: Callable[[str], None], name: str) -> None:
    require(name)
    verdict = await judge.verdict(language=name, code=WITH_THREADS[name])
    assert (verdict.status, verdict.stdout, verdict.stderr) == ("accepted", "4950\n", "")


@pytest.mark.parametrize("judge", dict.fromkeys([STRONGEST, "B"]), indirect=True)
async def test_java_has_the_heap_that_its_memory_limit_allows(
    judge: JudgeInProcess, require: Callable[[str], None]
) -> None:
    """A heap that is half garbage exceeds no limit, and one that is too small ends with Java's own error."""
    require("java")
    code = """
    public class Main {
        public static void main(String[] a) {
            long sum = 0;
            for (int i = 0; i < 400; i++) sum += new byte[8 << 20].length;
            System.out.println(sum);
            byte[][] kept = new byte[100][];
            for (int i = 0; i < 100; i++) kept[i] = new byte[8 << 20];
        }
    }"""
    verdict = await judge.verdict(language="java", code=code)
    assert (verdict.status, verdict.exit_code, verdict.stdout) == ("runtime_error", 1, f"{400 * (8 << 20)}\n")
    assert "OutOfMemoryError" in verdict.stderr


@pytest.mark.parametrize("judge", [STRONGEST, "D"], indirect=True)
async def test_pytest_runs_the_tests_of_a_file(judge: JudgeInProcess) -> None:
    code = "import helper\ndef test_right(): assert helper.f(1) == 2\ndef test_wrong(): assert helper.f(1) == {}\n"
    files = {"helper.py": "ZGVmIGYobik6IHJldHVybiBuICsgMQo="}
    verdict = await judge.verdict(language="pytest", code=code.format(2), files=files)
    assert (verdict.status, "2 passed" in verdict.stdout) == ("accepted", True)
    verdict = await judge.verdict(language="pytest", code=code.format(3), files=files)
    assert (verdict.status, verdict.exit_code, "1 failed, 1 passed" in verdict.stdout) == ("runtime_error", 1, True)


@pytest.mark.parametrize("judge", [STRONGEST], indirect=True)
@pytest.mark.parametrize("name", SUITES)
async def test_the_code_is_a_file_of_tests(judge: JudgeInProcess, require: Callable[[str], None], name: str) -> None:
    require(name)
    code, output = SUITES[name]
    verdict = await judge.verdict(language=name, code=code.replace("EXPECTED", "42"))
    assert verdict.status == "accepted", verdict
    verdict = await judge.verdict(language=name, code=code.replace("EXPECTED", "43"))
    assert (verdict.status, verdict.exit_code, output in verdict.stdout + verdict.stderr) == (
        "runtime_error",
        1,
        True,
    ), verdict


@pytest.mark.parametrize("judge", [STRONGEST, "C"], indirect=True)
@pytest.mark.parametrize(
    ("language", "code", "options", "output"),
    [
        (
            "c",
            '#include <stdio.h>\nint main(void) { printf("%d %ld", N, __STDC_VERSION__); }',
            ["-DN=5", "-std=c99"],
            "5 199901",
        ),
        (
            "cpp",
            "#include <bits/stdc++.h>\n#include <concepts>\nint main() { std::cout << (__cplusplus > 202000); }",
            ["-std=c++20"],
            "1",
        ),
        ("rust", 'fn main() { println!("{}", cfg!(feature_x)); }', ["--cfg", "feature_x"], "true"),
        ("java", "class Main { public static void main(String[] a) { System.out.print(1); } }", ["-Xlint:all"], "1"),
    ],
)
async def test_options_reach_the_compiler(
    judge: JudgeInProcess,
    require: Callable[[str], None],
    language: str,
    code: str,
    options: list[str],
    output: str,
) -> None:
    require(language)
    verdict = await judge.verdict(language=language, code=code, compile_options=options, expected_output=output)
    assert (verdict.status, verdict.stdout.strip()) == ("accepted", output)


@pytest.mark.parametrize("judge", [STRONGEST], indirect=True)
async def test_options_distinguish_compilations(judge: JudgeInProcess) -> None:
    code = '#include <stdio.h>\nint main(void) { printf("%d", N); }'
    for number in (1, 2):
        verdict = await judge.verdict(language="c", code=code, compile_options=[f"-DN={number}"])
        assert verdict.stdout == str(number)
