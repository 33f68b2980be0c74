"""Cells as people write them for Jupyter, in both kinds of notebooks: sessions, and SandboxFusion's `/run_jupyter`."""

import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from executor_jobs import tier_or_skip
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge
from session_client import Session

LIMITS = ["--num-slots", "1", "--max-cpu-time-s", "20", "--max-wall-time-s", "60", "--max-memory-mb", "512"]
STRONGEST = "A" if os.geteuid() == 0 else "B"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Cell:
    """Result of a cell, in either format."""

    stdout: str
    stderr: str
    display: list[dict[str, str]]
    error: tuple[str, str] | None


RunCells = Callable[..., list[Cell]]


def session_cells(judge: JudgeProcess, *cells: str) -> list[Cell]:
    """Run cells one after the other in a session, which keeps the changes of a failing one."""
    session = Session(judge)
    results = [session.cell(cell, keep_on_error=True) for cell in cells]
    session.close()
    return [
        Cell(
            result["stdout"],
            result["stderr"],
            result["display"],
            result["error"] and (result["error"]["name"], result["error"]["value"]),
        )
        for result in results
    ]


def jupyter_cells(judge: JudgeProcess, *cells: str) -> list[Cell]:
    """Run cells in one request in the format of SandboxFusion."""
    reply = judge.http.post("/run_jupyter", json={"cells": cells, "total_timeout": 50})
    assert reply.status_code == 200, reply.text
    return [
        Cell(
            result["stdout"],
            result["stderr"],
            result["display"],
            (result["error"][0]["ename"], result["error"][0]["evalue"]) if result["error"] else None,
        )
        for result in reply.json()["cells"]
    ]


JudgeOfTier = Callable[[str], JudgeProcess]


@pytest.fixture(scope="module")
def judge_of_tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeOfTier]:
    judges: dict[str, JudgeProcess] = {}
    with contextlib.ExitStack() as stack:

        def judge(tier: str) -> JudgeProcess:
            if tier != "D":
                tier_or_skip(tier)
            if tier not in judges:
                folder = tmp_path_factory.mktemp("judge")
                judges[tier] = stack.enter_context(running_judge(folder, *LIMITS, *WITHOUT_MODULES, isolation=tier))
            return judges[tier]

        yield judge


@pytest.fixture(
    params=[("session", STRONGEST), ("jupyter", STRONGEST), ("jupyter", "C"), ("jupyter", "D")], ids="-".join
)
def run_cells(judge_of_tier: JudgeOfTier, request: pytest.FixtureRequest) -> RunCells:
    kind, tier = request.param
    run = session_cells if kind == "session" else jupyter_cells
    judge = judge_of_tier(tier)
    return lambda *cells: run(judge, *cells)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("1 + 1  # two", ["2"]),
        ("1 + 1  # the sum; of ones", ["2"]),
        ("(\n    1 + 1\n)\n# the end;", ["2"]),
        ("'a;b'  # text", ["'a;b'"]),
        ("1 + 1;", []),
        ("1 + 1;  # silent", []),
        ("(1 + 1);", []),
    ],
)
def test_a_comment_hides_no_value_and_a_semicolon_does(run_cells: RunCells, cell: str, shown: list[str]) -> None:
    (result,) = run_cells(cell)
    assert [forms["text/plain"] for forms in result.display] == shown


def test_modules_are_found_where_a_cell_has_gone(run_cells: RunCells) -> None:
    results = run_cells(
        "import os\nos.mkdir('lib')\nopen('lib/mine.py', 'w').write('X = 5');", "os.chdir('lib')", "import mine\nmine.X"
    )
    assert (results[-1].error, results[-1].display) == (None, [{"text/plain": "5"}])


def test_future_statements_hold_for_the_cells_after(run_cells: RunCells) -> None:
    results = run_cells(
        "from __future__ import annotations", "def f(x: Missing) -> int: ...\nf.__annotations__['x']", "f"
    )
    assert (results[1].error, results[1].display) == (None, [{"text/plain": "'Missing'"}])


def test_the_source_of_a_function_is_known(run_cells: RunCells) -> None:
    source = "def f(x):\n    # doubles\n    return 2 * x\n"
    results = run_cells(f"import inspect\n{source}", "print(inspect.getsource(f), end='')", "@staticmethod\ndef g(): 1")
    assert (results[1].error, results[1].stdout) == (None, source)


def test_the_source_of_a_class_is_known(run_cells: RunCells) -> None:
    source = "class A:\n    x: int = 1\n"
    results = run_cells(
        "class A: pass",
        source,
        "class B(A): pass",
        "import inspect\nprint(inspect.getsource(A), end='')",
        "inspect.getfile(int)",
    )
    assert (results[3].error, results[3].stdout) == (None, source)
    assert results[4].error is not None
    assert results[4].error[0] == "TypeError"


def test_line_breaks_of_every_kind_number_the_lines_of_a_traceback(run_cells: RunCells) -> None:
    (result,) = run_cells(
        "x = 'a\\x0cb\x0c'\r\ny = 1\r\ndef f():\r\n    return y\r\nimport inspect\r\ninspect.getsource(f)"
    )
    assert (result.error, result.display) == (None, [{"text/plain": repr("def f():\n    return y\n")}])


def test_changes_of_a_failing_cell_stay(run_cells: RunCells) -> None:
    results = run_cells("x = 1", "x = 2\ny = [3]\n1 / 0\nx = 4", "x, y")
    assert [result.error and result.error[0] for result in results] == [None, "ZeroDivisionError", None]
    assert results[-1].display == [{"text/plain": "(2, [3])"}]


@pytest.mark.parametrize("cell", ["!ls", "x = 1\n%time x", "%%bash\nls", "files = !ls", "for i in [1]:\n    !ls"])
def test_commands_of_ipython_are_refused_by_name(run_cells: RunCells, cell: str) -> None:
    (result,) = run_cells(cell)
    assert result.error is not None
    assert result.error[0] == "SyntaxError"
    assert "commands of IPython" in result.error[1]
    assert f"line {1 + cell[: max(cell.find('!'), cell.find('%'))].count(chr(10))}" in result.error[1]


def test_an_ordinary_syntax_error_is_reported_as_by_python(run_cells: RunCells) -> None:
    (result,) = run_cells("x = 7\ny = x +")
    assert result.error == ("SyntaxError", "invalid syntax (Cell In[1], line 2)")


def test_figures_are_pictures_and_nothing_is_said_beside_them(run_cells: RunCells) -> None:
    pytest.importorskip("matplotlib")
    results = run_cells(
        "%matplotlib inline\nimport matplotlib.pyplot as plt",
        "plt.plot([1, 2], [3, 4])\nplt.title('é')\nplt.show()\nprint('shown')\nplt.figure()\nplt.bar([1], [2]);",
        "plt.get_fignums()",
        "plt.plot([1])\n1 / 0",
    )
    assert [(result.stdout, result.stderr) for result in results] == [("", ""), ("shown\n", ""), ("", ""), ("", "")]
    pictures = [base64.b64decode(forms["image/png"]) for forms in results[1].display]
    assert [picture[:8] for picture in pictures] == [PNG, PNG]
    assert results[2].display == [{"text/plain": "[]"}]
    assert ["image/png" in forms for forms in results[3].display] == [True]


def test_an_object_shows_its_own_picture(run_cells: RunCells) -> None:
    (result,) = run_cells("class P:\n    def _repr_png_(self): return b'png'\n    def __repr__(self): return 'P'\nP()")
    assert result.display == [{"text/plain": "P", "image/png": base64.b64encode(b"png").decode()}]


def test_pictures_have_a_bound(run_cells: RunCells) -> None:
    (result,) = run_cells("class P:\n    def _repr_png_(self): return b'x' * 500_000\nfor _ in range(3): display(P())")
    assert ["image/png" in forms for forms in result.display] == [True, False, False]


def test_an_exception_whose_text_raises_is_the_cells_result(run_cells: RunCells) -> None:
    cell = "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd"
    assert [result.error for result in run_cells(cell)] == [("Odd", "<no text: SystemExit>")]


@pytest.mark.parametrize("tier", [STRONGEST, "D"])
def test_a_notebook_that_ends_before_its_last_cell_has_failed(judge_of_tier: JudgeOfTier, tier: str) -> None:
    for end in ("os._exit(0)", "import shutil; shutil.rmtree('.cells')"):
        notebook = {"cells": ["1", f"import os\n{end}", "assert False"]}
        answer = judge_of_tier(tier).http.post("/run_jupyter", json=notebook).json()
        assert (answer["status"], len(answer["cells"]) < 3) == ("Failed", True)


@pytest.mark.parametrize("tier", [STRONGEST, "D"])
def test_files_with_names_of_modules_do_not_stop_a_notebook(judge_of_tier: JudgeOfTier, tier: str) -> None:
    files = {f"{name}.py": base64.b64encode(b"x = 5").decode() for name in ("json", "random", "ast", "mine")}
    notebook = {"cells": ["import mine\nprint(mine.x)"], "files": files}
    answer = judge_of_tier(tier).http.post("/run_jupyter", json=notebook).json()
    assert (answer["status"], answer["cells"][0]["stdout"]) == ("Success", "5\n")


@pytest.mark.parametrize("tier", [STRONGEST, "D"])
def test_a_notebook_does_not_wait_for_threads_that_its_cells_left(judge_of_tier: JudgeOfTier, tier: str) -> None:
    notebook = {"cells": ["import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()", "1"]}
    answer = judge_of_tier(tier).http.post("/run_jupyter", json=notebook).json()
    assert (answer["status"], len(answer["cells"])) == ("Success", 2)
    assert answer["driver"]["execution_time"] < 30


@pytest.mark.parametrize("tier", [STRONGEST, pytest.param("B", marks=pytest.mark.slow)])
def test_files_have_the_absolute_paths_that_sandbox_fusion_takes(judge_of_tier: JudgeOfTier, tier: str) -> None:
    judge = judge_of_tier(tier)
    code = "data = open('/mnt/data/in').read()\nopen('/mnt/out', 'w').write(data * 2)\nprint(open('/sandbox/a').read())"
    given = {"/mnt/data/in": "YQ==", "/sandbox/a": "Yg=="}
    wanted = ["/mnt/out", "out", "/mnt/none"]
    # Ten seconds of wall clock, which it would have, are too few where others take the machine.
    request = {"code": code, "language": "python", "files": given, "fetch_files": wanted, "run_timeout": 50}
    answer = judge.http.post("/run_code", json=request).json()
    assert (answer["status"], answer["run_result"]["stdout"]) == ("Success", "b\n")
    assert answer["files"] == {"/mnt/out": "YWE=", "out": "YWE="}
    notebook = {"cells": [code], "files": given, "fetch_files": ["/mnt/out"]}
    assert judge.http.post("/run_jupyter", json=notebook).json()["files"] == {"/mnt/out": "YWE="}


def test_absolute_paths_are_refused_where_they_would_be_the_machines(judge_of_tier: JudgeOfTier) -> None:
    request = {"code": "", "language": "python", "fetch_files": ["/mnt/out"]}
    refused = judge_of_tier("D").http.post("/run_code", json=request)
    assert (refused.status_code, "Use relative paths" in refused.json()["detail"]) == (400, True)
    refused = judge_of_tier(STRONGEST).http.post("/run_code", json={**request, "fetch_files": ["/etc/passwd"]})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "fetch_files.0")


@pytest.fixture
def session(judge_of_tier: JudgeOfTier) -> Iterator[Session]:
    opened = Session(judge_of_tier(STRONGEST))
    yield opened
    opened.close()


def test_a_failing_cell_that_is_kept_is_a_snapshot(session: Session) -> None:
    before = session.cell("x = 1")["snapshot"]
    failed = session.cell("x = 2\nexit(0)", keep_on_error=True)
    assert (failed["status"], failed["exit_code"], failed["error"]["name"]) == ("runtime_error", 1, "SystemExit")
    assert failed["snapshot"] > before
    assert session.value("x") == "2"
    assert session.cell("x = 3\n1 / 0")["snapshot"] > failed["snapshot"]
    assert session.value("x") == "2"
    assert session.value("x", from_snapshot=before) == "1"


def test_files_go_into_a_session_and_come_back(session: Session) -> None:
    def encoded(content: bytes) -> str:
        return base64.b64encode(content).decode()

    first = session.cell(
        "import os\ndata = open('in/a', 'rb').read()\nos.mkdir('out')\nopen('out/b', 'wb').write(data * 2);",
        files={"in/a": encoded(b"\xff\x00"), "empty": ""},
        collect=["out/b", "missing", "empty", "out"],
    )
    assert (first["status"], first["files"]) == ("accepted", {"out/b": encoded(b"\xff\x00" * 2), "empty": ""})
    later: dict[str, Any] = session.cell(
        "os.chdir('/tmp'); 1 / 0", files={"in/a": encoded(b"new")}, collect=["in/a"], keep_on_error=True
    )
    assert (later["status"], later["files"]) == ("runtime_error", {"in/a": encoded(b"new")})
    assert session.cell("1", collect=["in/a"])["files"] == {"in/a": encoded(b"new")}
    refused = session.try_cell("1", files={"../a": ""})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "files.../a.[key]")


def test_a_file_that_does_not_fit_into_the_reply_is_flagged(session: Session) -> None:
    result = session.cell("open('big', 'wb').truncate(17 << 20); open('s', 'w').write('x');", collect=["big", "s"])
    assert (result["files"], result["files_truncated"]) == ({"s": "eA=="}, True)


def test_files_beyond_the_disk_are_an_error_of_the_cell(judge_of_tier: JudgeOfTier) -> None:
    small = Session(judge_of_tier(STRONGEST), limits={"disk_bytes": 8192})
    result = small.cell("x = 1", files={"a": base64.b64encode(b"x" * 100_000).decode()})
    assert (result["status"], result["error"]["name"]) == ("runtime_error", "OSError")
    assert small.value("1 + 1") == "2"
    small.close()
