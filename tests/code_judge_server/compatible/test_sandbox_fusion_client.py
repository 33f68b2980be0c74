"""SandboxFusion's own client, `sandbox-fusion` on PyPI, works unchanged with this judge."""

import asyncio
import base64
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sandbox_fusion
from judge_process import JudgeProcess
from sandbox_fusion import (
    CommandRunStatus,
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
    RunStatus,
    SummaryMapping,
)

MAPPING = SummaryMapping(
    Success="success", Failed="failed", CompileFailed="compile failed", CompileTimeout="compile timeout",
    RunFailed="run failed", RunTimeout="run timeout",
)  # fmt: skip


TAKES_LONG_TO_COMPILE = """
constexpr long sum() { long s = 0; for (int i = 0; i < 100; i++) for (int j = 0; j < 200000; j++) s += j; return s; }
static_assert(sum() > 0);
int main() {}
"""
"""Takes four seconds on a fast machine."""


def request(code: str, **fields: Any) -> RunCodeRequest:
    return RunCodeRequest(**{"language": "python", "code": code, **fields})


def run_code(judge: JudgeProcess, code: str, **fields: Any) -> RunCodeResponse:
    return sandbox_fusion.run_code(request(code, **fields), endpoint=judge.url, max_attempts=1)


def test_a_program_that_ends_well_is_a_success(judge: JudgeProcess) -> None:
    response = run_code(judge, code="import sys\nprint(input())\nprint('e', file=sys.stderr)", stdin="a")
    assert (response.status, response.message, response.compile_result) == (RunStatus.Success, "", None)
    result = response.run_result
    assert result is not None
    assert (result.status, result.return_code) == (CommandRunStatus.Finished, 0)
    assert (result.stdout, result.stderr) == ("a\n", "e\n")
    assert 0 < (result.execution_time or 0) < 2


def run_with_a_core(judge: JudgeProcess, code: str, **fields: Any) -> RunCodeResponse:
    """Run again while the machine has no core for the compiler, which is an error and not an end of the program."""
    while True:
        try:
            return run_code(judge, code, **fields)
        except Exception as error:  # the client has no class for it
            if not re.search(r"compiler: .* of CPU time in", str(error)):
                raise


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        ({"code": "print(1)"}, "success"),
        ({"code": "exit(3)"}, "run failed"),
        ({"code": "import os; os.abort()"}, "run failed"),
        ({"code": "x = bytearray(10**9)\nprint(len(x.replace(b'0', b'1')))"}, "run failed"),
        ({"code": "while True: print('x' * 10000)"}, "run failed"),
        ({"code": "import time; time.sleep(20)", "run_timeout": 0.5}, "run timeout"),
        ({"code": "while True: pass", "run_timeout": 0.5}, "run timeout"),
        ({"code": "int main() { return 0; }", "language": "cpp"}, "success"),
        ({"code": "int main() { return 1; }", "language": "cpp"}, "run failed"),
        ({"code": "int main( { return 1; }", "language": "cpp"}, "compile failed"),
        ({"code": TAKES_LONG_TO_COMPILE, "language": "cpp", "compile_timeout": 0.3}, "compile timeout"),
    ],
)
def test_the_clients_own_summary_knows_every_end(judge: JudgeProcess, fields: dict[str, Any], summary: str) -> None:
    assert sandbox_fusion.summary_run_code_result(run_with_a_core(judge, **fields), MAPPING) == summary


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print(6 * 7)"),
        ("cpp", '#include <iostream>\nint main() { std::cout << 6 * 7 << "\\n"; }'),
        ("bash", "echo $((6 * 7))"),
        ("nodejs", "console.log(6 * 7)"),
    ],
)
def test_their_names_of_languages_are_known(judge: JudgeProcess, language: str, code: str) -> None:
    response = run_code(judge, language=language, code=code)
    assert response.run_result is not None
    assert (response.status, response.run_result.stdout) == (RunStatus.Success, "42\n")


def test_a_missing_language_is_a_sandbox_error_that_the_client_raises(judge: JudgeProcess) -> None:
    with pytest.raises(Exception, match="language: `verilog` is not among this server's: python"):
        run_code(judge, language="verilog", code="")


def test_files_go_in_and_come_back(judge: JudgeProcess) -> None:
    response = run_code(
        judge,
        code="import os\nos.mkdir('out')\nopen('out/b', 'wb').write(open('in/a', 'rb').read() * 2)",
        files={"./in/a": base64.b64encode(b"\xff\x00").decode(), "ignored": None},
        fetch_files=["./out/b", "out/b", "ignored", "missing"],
    )
    twice = base64.b64encode(b"\xff\x00\xff\x00").decode()
    assert response.files == {"./out/b": twice, "out/b": twice}


def notebook(*cells: str, **fields: Any) -> RunJupyterRequest:
    return RunJupyterRequest(**{"cells": list(cells), **fields})


def run_jupyter(judge: JudgeProcess, *cells: str, **fields: Any) -> RunJupyterResponse:
    return sandbox_fusion.run_jupyter(notebook(*cells, **fields), endpoint=judge.url, max_attempts=1)


def test_cells_share_variables_and_display_their_last_value(judge: JudgeProcess) -> None:
    response = run_jupyter(
        judge,
        "a = 123",
        "a",
        "print(a)",
        "import sys; sys.stderr.write('stderr message');",
        "import asyncio\nasync def f(): return [_]\nawait f()",
        "import os; os.system('echo below');",
        "display(a, 'b')",
    )
    assert (response.status, response.driver and response.driver.return_code) == (RunStatus.Success, 0)
    shown = [(cell.stdout, cell.stderr, [form["text/plain"] for form in cell.display]) for cell in response.cells]
    assert shown == [
        ("", "", []),
        ("", "", ["123"]),
        ("123\n", "", []),
        ("", "stderr message", []),
        ("", "", ["[123]"]),
        ("below\n", "", []),
        ("", "", ["123", "'b'"]),
    ]
    assert [cell.error for cell in response.cells] == [[]] * 7


@pytest.mark.slow
def test_an_exception_of_a_cell_is_reported_and_the_next_cell_runs(judge: JudgeProcess) -> None:
    cells = ["def f(n):\n    return 1 / n\nf(0)", "1 +", "exit(3)", "import time\ntime.sleep(600)", "7"]
    response = run_jupyter(judge, *cells, cell_timeout=5)
    errors = [[(error["ename"], error["evalue"]) for error in cell.error] for cell in response.cells]
    assert errors == [
        [("ZeroDivisionError", "division by zero")],
        [("SyntaxError", "invalid syntax (Cell In[2], line 1)")],
        [("SystemExit", "3")],
        [("TimeoutError", "the cell took longer than `cell_timeout`")],
        [],
    ]
    traceback = response.cells[0].error[0]["traceback"]
    assert [line.strip() for line in traceback if "File" in line] == [
        'File "Cell In[1]", line 3, in <module>',
        'File "Cell In[1]", line 2, in f',
    ]
    traceback = response.cells[3].error[0]["traceback"]
    assert [line.strip() for line in traceback if "File" in line] == ['File "Cell In[4]", line 2, in <module>']
    assert response.cells[4].display == [{"text/plain": "7"}]


def test_objects_show_their_rich_forms(judge: JudgeProcess) -> None:
    (cell,) = run_jupyter(judge, "import sympy\nsympy.Symbol('x') ** 2").cells
    assert cell.display == [{"text/plain": "x**2", "text/latex": "$\\displaystyle x^{2}$"}]


def test_files_of_a_notebook_go_in_and_come_back(judge: JudgeProcess) -> None:
    content = base64.b64encode(b"A = 5\n").decode()
    cells = ["import helper", "open('b', 'w').write(str(helper.A));"]
    response = run_jupyter(judge, *cells, files={"./helper.py": content}, fetch_files=["b"])
    assert response.files == {"b": base64.b64encode(b"5").decode()}


@pytest.mark.parametrize(
    ("cell", "status", "return_code"),
    [
        ("import time; time.sleep(30)", CommandRunStatus.TimeLimitExceeded, None),
        ("while True: pass", CommandRunStatus.TimeLimitExceeded, None),
        ("import os; os._exit(3)", CommandRunStatus.Finished, 3),
        ("import os; os.abort()", CommandRunStatus.Finished, -6),
    ],
)
def test_an_interpreter_that_dies_is_a_failure_that_keeps_the_cells_before(
    judge: JudgeProcess, cell: str, status: CommandRunStatus, return_code: int | None
) -> None:
    response = run_jupyter(judge, "print(1)", "2", cell, "4", total_timeout=1)
    assert (response.status, [cell.stdout for cell in response.cells]) == (RunStatus.Failed, ["1\n", ""])
    assert response.cells[1].display == [{"text/plain": "2"}]
    assert response.driver is not None
    assert (response.driver.status, response.driver.return_code) == (status, return_code)


def test_forged_results_of_a_cell_do_no_harm(judge: JudgeProcess) -> None:
    forge = "import os\nopen('.cells/results.jsonl', 'w').write('{\"stdout\": 5}\\n')\nos._exit(0)"
    response = run_jupyter(judge, forge)
    assert (response.status, response.cells) == (RunStatus.Failed, [])


@pytest.mark.parametrize("item", ["{}", "1", '[{"stdout":"","stderr":"","display":[],"error":[]}]'])
def test_many_forged_results_do_not_block_the_server(judge: JudgeProcess, item: str) -> None:
    write = f"open('.cells/results.jsonl', 'w').write('[' + '{item},' * (6 * 2**20 // {len(item)}) + '1]\\n')"
    forge = f"{write}\nimport os; os._exit(0)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_jupyter, judge, forge)
        # CPU time of the server during each answer, an upper bound of the time that others wait
        used_s: list[float] = []
        while not running.done():
            before_s = judge.cpu_time_s()
            assert judge.http.get("/v1/ready").status_code == 200
            used_s.append(judge.cpu_time_s() - before_s)
    assert (running.result().status, running.result().cells) == (RunStatus.Failed, [])
    assert max(used_s) < 1


async def test_the_asynchronous_client_runs_notebooks_too(judge: JudgeProcess) -> None:
    response = await sandbox_fusion.run_jupyter_async(notebook("6 * 7"), endpoint=judge.url, max_attempts=1)
    assert response.cells[0].display == [{"text/plain": "42"}]


async def test_the_asynchronous_client_works_too(judge: JudgeProcess) -> None:
    requests = [request(f"print({i})") for i in range(8)]
    responses = await asyncio.gather(*(sandbox_fusion.run_code_async(item, endpoint=judge.url) for item in requests))
    assert [response.run_result.stdout for response in responses if response.run_result] == [f"{i}\n" for i in range(8)]


def test_run_concurrent_works_too(judge: JudgeProcess) -> None:
    requests = [[request(f"print({i})"), judge.url] for i in range(8)]
    responses = sandbox_fusion.run_concurrent(sandbox_fusion.run_code, requests, concurrency=8)
    assert [response.run_result.stdout for response in responses] == [f"{i}\n" for i in range(8)]
