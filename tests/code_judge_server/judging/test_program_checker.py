"""Checkers of the user: how they accept, refuse, and fail."""

import time
from pathlib import Path

import pytest
import pytest_asyncio
from judge_in_process import JudgeInProcess, judge_in_process

from code_judge_server.judging import deciding_program

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge(tmp_path_factory: pytest.TempPathFactory):
    async with judge_in_process(Path(tmp_path_factory.mktemp("judge"))) as judge:
        yield judge


async def checked(judge: JudgeInProcess, code: str, language: str = "python") -> tuple[str, str]:
    """Return the status and stderr of a program whose output that checker sees."""
    checker = {"kind": "program", "code": code, "language": language}
    verdict = await judge.verdict(code="print('2 apples')", checker=checker)
    return verdict.status, verdict.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("int(open('output.txt').read())", "ValueError: invalid literal for int()"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def f(): raise KeyError('a\\nb')\ntry: f()\nexcept KeyError: 1 / 0", "ZeroDivisionError"),
        ("raise ExceptionGroup('two', [ValueError(1), ValueError(2)])", "ExceptionGroup: two"),
        ("x = (\nprint(", "SyntaxError"),
        ("if 1:\nprint()", "IndentationError"),
        ("import sys\nprint('it is wrong:', file=sys.stderr)\n[][0]", "IndexError"),
    ],
    ids=["value", "import", "chained", "group", "syntax", "indentation", "after words"],
)
async def test_a_checker_that_raises_has_failed(judge: JudgeInProcess, code: str, said: str) -> None:
    status, stderr = await checked(judge, code)
    assert status == "internal_error"
    assert stderr.startswith("checker: it ended with an exception. It wrote: ")
    assert said in stderr


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(1)",
        "raise SystemExit('the output is no number')",
        "import sys; print(repr('a\\nTraceback (most recent call last):'), file=sys.stderr); exit(1)",
        "import sys; print('not expected: Traceback (most recent call last):', file=sys.stderr); exit(1)",
        "import sys; print('Traceback (most recent call last):\\nis what it printed', file=sys.stderr); exit(1)",
        "print('Traceback (most recent call last):\\n  File \"main.py\", line 1'); exit(1)",
    ],
    ids=["1", "message", "quoted", "in a line", "no frame", "stdout"],
)
async def test_a_checker_that_ends_with_1_refuses(judge: JudgeInProcess, code: str) -> None:
    assert await checked(judge, code) == ("wrong_answer", "")


async def test_only_a_checker_in_python_raises(judge: JudgeInProcess) -> None:
    code = "printf 'Traceback (most recent call last):\\n  File \"x\", line 1\\nE: 1\\n' >&2; exit 1"
    assert await checked(judge, code, "bash") == ("wrong_answer", "")


async def test_a_checker_that_accepts_may_print_anything(judge: JudgeInProcess) -> None:
    code = "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()"
    assert await checked(judge, code) == ("accepted", "")


async def test_the_search_of_checker_output_is_fast() -> None:
    hostile = b'  File "", line 1\n' * 60_000
    started_s = time.thread_time()
    assert deciding_program.UNCAUGHT.search(hostile) is None
    assert time.thread_time() - started_s < 1


@pytest.mark.parametrize(
    ("exit_code", "status"),
    [(1, "wrong_answer"), (2, "wrong_answer"), (4, "wrong_answer"), (8, "wrong_answer"), (3, "internal_error")],
)
async def test_a_compiled_checker_may_end_as_those_of_testlib_do(
    judge: JudgeInProcess, exit_code: int, status: str
) -> None:
    assert (await checked(judge, f"int main() {{ return {exit_code}; }}", "c"))[0] == status


async def test_a_python_checker_that_ends_with_2_has_failed(judge: JudgeInProcess) -> None:
    assert (await checked(judge, "raise SystemExit(2)"))[0] == "internal_error"
