"""The program that runs the cells of one SandboxFusion notebook: the `main.py` of a job, which imports nothing of the judge.

It reads `{"num_cells", "cell_timeout", "max_chars"}` as JSON from stdin, runs the files `CELL_FILE` in one namespace as a
notebook does, and writes a list of `{"stdout", "stderr", "display", "error"}` to `RESULT_FILE`. What it writes concerns nobody
but the author of the cells, who shares the process with it: it is no verdict.
"""

import ast
import asyncio
import inspect
import json
import linecache
import os
import signal
import sys
import tempfile
import traceback
import types

CELL_FOLDER = ".cells"
CELL_FILE = CELL_FOLDER + "/{number}.py"
RESULT_FILE = CELL_FOLDER + "/results.json"
_RICH_FORMS = {
    "text/html": "_repr_html_",
    "text/latex": "_repr_latex_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
}


class Capture:
    """Takes what is written to the descriptors 1 and 2, by whomever, and gives it back cell by cell."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._streams = (sys.stdout, sys.stderr)  # a cell may put others in their place
        self._files = [tempfile.TemporaryFile() for _ in self._streams]  # noqa: SIM115 - open until the end
        for target, file in enumerate(self._files, start=1):
            os.dup2(file.fileno(), target)

    def start(self) -> None:
        """Forget what was written so far."""
        for file in self._files:
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)

    def texts(self) -> list[str]:
        """Return what was written to each since `start`, or the beginning of it."""
        for stream in self._streams:
            stream.flush()
        most = 4 * self._max_chars  # a character of UTF-8 has four bytes at most
        written = [os.pread(file.fileno(), most, 0) for file in self._files]
        return [data.decode(errors="replace")[: self._max_chars] for data in written]


class Notebook:
    """Runs cells in one namespace, which is the module `__main__` to them."""

    def __init__(self, capture: Capture, cell_timeout_s: float) -> None:
        self._capture = capture
        self._pid = os.getpid()
        self._cell_timeout_s = cell_timeout_s
        self._module = sys.modules["__main__"] = types.ModuleType("__main__")
        self._module.__dict__.update(display=self._show)
        self._loop = asyncio.new_event_loop()
        self._display: list[dict[str, str]] = []
        signal.signal(signal.SIGALRM, _raise_timeout)

    def run(self, cell: str, number: int) -> dict[str, object]:
        """Run a cell, and return what it printed, showed and raised."""
        self._display = []
        self._capture.start()
        error = []
        try:
            self._execute(cell, f"Cell In[{number}]")
        except BaseException as raised:  # noqa: BLE001 - whatever a cell raises, `SystemExit` too, is its result
            error = [_described(raised)]
        stdout, stderr = self._capture.texts()
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that the cell made has come to its end
        return {"stdout": stdout, "stderr": stderr, "display": self._display, "error": error}

    def _execute(self, cell: str, name: str) -> None:
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        tree = compile(cell, name, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body[-1] if tree.body else None
        shown = ast.Expression(last.value) if isinstance(last, ast.Expr) and not cell.rstrip().endswith(";") else None
        if shown is not None:
            tree.body.pop()
        signal.setitimer(signal.ITIMER_REAL, self._cell_timeout_s)
        try:
            self._evaluate(tree, name, "exec")
            if shown is not None and (value := self._evaluate(shown, name, "eval")) is not None:
                self._module.__dict__["_"] = value
                self._show(value)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _evaluate(self, tree: ast.Module | ast.Expression, name: str, mode: str) -> object:
        code = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(code, self._module.__dict__)
        return self._loop.run_until_complete(value) if code.co_flags & inspect.CO_COROUTINE else value

    def _show(self, *values: object) -> None:
        for value in values:
            forms = {"text/plain": repr(value)}
            for kind, method in _RICH_FORMS.items():
                make = getattr(type(value), method, None)
                if make is not None and isinstance(form := make(value), str):
                    forms[kind] = form
            self._display.append(forms)


def _raise_timeout(_signal: int, _frame: types.FrameType | None) -> None:
    raise TimeoutError("the cell took longer than `cell_timeout`")


def _described(error: BaseException) -> dict[str, object]:
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list([frame for frame in report.stack if frame.filename != __file__])
    text = "".join(report.format())
    return {"ename": type(error).__name__, "evalue": str(error), "traceback": text.splitlines()}


def main() -> None:
    """Run the cells."""
    request = json.load(sys.stdin)
    sys.stdin = open(os.devnull)  # noqa: SIM115 - it is the cells' own from here on
    notebook = Notebook(Capture(request["max_chars"]), request["cell_timeout"])
    results = [notebook.run(_read_cell(number), number) for number in range(1, request["num_cells"] + 1)]
    with open(
        RESULT_FILE, "w", encoding="utf-8", errors="replace"
    ) as file:  # errors: a cell may print half a character
        json.dump(results, file, ensure_ascii=False)


def _read_cell(number: int) -> str:
    with open(CELL_FILE.format(number=number), encoding="utf-8", newline="") as file:
        return file.read()


if __name__ == "__main__":
    main()
