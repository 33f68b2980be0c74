"""Notebook cells: runs one in the module `__main__`, as Jupyter does, and describes its result.

Runs inside the jail, in one process with the cells' own code: its report of a cell concerns only the author of the cells. The
programs of sessions and of SandboxFusion's notebooks ship this file into their work folder: it imports nothing of the server.
"""

import __future__

import ast
import inspect
import io
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from code_judge_server.jail.python import notebook_display

_NAME = "Cell In[{number}]"
MAX_SHOWN = 1000
"""Most values of one cell that are displayed."""
_FUTURE_FLAGS = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_LINE_END = re.compile(r"\r\n|\r|\n")
_MATPLOTLIB_MAGIC = re.compile(r"(?m)^([ \t]*)%matplotlib\b[^\r\n]*$")
_MAGIC = re.compile(r"\s*(?:[\w.,\s]+=\s*)?[%!]")
_NO_MAGIC = (
    "`%` and `!` are commands of IPython, and this notebook runs plain Python. Leave the line out; to run a command, use "
    "`subprocess.run`"
)


class Notebook:
    """Runs cells in one namespace, which is their module `__main__`.

    Args:
        run_coroutine: Runs a top-level `await` of a cell.
        around: Context that is entered while the code of a cell runs.
    """

    def __init__(
        self,
        *,
        run_coroutine: Callable[[Coroutine[Any, Any, object]], object],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._run_coroutine = run_coroutine
        self._around = around
        self._module = sys.modules["__main__"] = types.ModuleType("__main__")
        self._module.__dict__.update(display=self._show)
        self._flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._names: list[str] = []
        self._room = notebook_display.Room(0)
        self._shown: list[dict[str, str]] = []
        sys.path[0] = ""  # the current folder, even after a cell changes it
        os.environ.setdefault("MPLBACKEND", "agg")
        self._find_file = inspect.getfile
        inspect.getfile = self._getfile
        sys.meta_path.insert(0, notebook_display.PyplotFinder(self._show_figures))

    def run(self, cell: str, *, number: int, max_chars: int) -> tuple[list[dict[str, str]], BaseException | None]:
        """Run a cell; return its displayed values, each by media type, and the exception it raised.

        Args:
            cell: Python, with `await` allowed at the top level.
            number: Number of the cell in tracebacks.
            max_chars: Most characters of all displayed text together.
        """
        self._room = notebook_display.Room(max_chars)
        self._shown = []
        name = _NAME.format(number=number)
        source = io.StringIO(cell, newline=None).read()
        lines = [line + "\n" for line in source.split("\n")]
        linecache.cache[name] = (len(cell), None, lines, name)
        self._names.append(name)
        error = None
        try:
            with self._around():
                self._execute(source, name)
        except BaseException as raised:  # noqa: BLE001 - any exception of a cell, `SystemExit` too, is its result
            error = raised
        try:
            with self._around():
                self._show_figures()
        except BaseException as raised:  # noqa: BLE001 - figures run callbacks of the cell
            error = error or raised
        return self._shown, error

    def _getfile(self, object: Any) -> str:  # the name that `inspect` has for it
        """Return the cell that last defined a class, else the result of `inspect.getfile`: `__main__` has no file."""
        if isinstance(object, type) and object.__module__ == "__main__":
            definition = re.compile(rf"\s*class\s+{re.escape(object.__name__)}\b")
            for name in reversed(self._names):
                if any(map(definition.match, linecache.getlines(name))):
                    return name
        return self._find_file(object)

    def _execute(self, cell: str, name: str) -> None:
        tree = self._parse(cell, name)
        last = tree.body[-1] if tree.body else None
        shown = ast.Expression(last.value) if isinstance(last, ast.Expr) and not _is_silenced(cell, last) else None
        if shown is not None:
            tree.body.pop()
        self._evaluate(tree, name, "exec")
        if shown is not None and (value := self._evaluate(shown, name, "eval")) is not None:
            self._module.__dict__["_"] = value
            self._show(value)

    def _parse(self, cell: str, name: str) -> ast.Module:
        try:
            return self._parse_python(cell, name)
        except SyntaxError as error:
            without = _MATPLOTLIB_MAGIC.sub(r"\1pass", cell)  # figures are displayed without it
            if without != cell:
                return self._parse(without, name)
            lines = cell.split("\n")
            line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
            if error.filename == name and _MAGIC.match(line):
                raise SyntaxError(_NO_MAGIC, (name, error.lineno, error.offset, line)) from None
            raise

    def _parse_python(self, cell: str, name: str) -> ast.Module:
        flags = self._flags & _FUTURE_FLAGS | ast.PyCF_ONLY_AST
        tree = compile(cell, name, "exec", flags=flags, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        return tree

    def _evaluate(self, tree: ast.Module | ast.Expression, name: str, mode: str) -> object:
        code = compile(tree, name, mode, flags=self._flags, dont_inherit=True)
        self._flags |= code.co_flags & _FUTURE_FLAGS
        value = eval(code, self._module.__dict__)
        return self._run_coroutine(value) if code.co_flags & inspect.CO_COROUTINE else value

    def _show(self, *values: object) -> None:
        for value in values:
            if len(self._shown) == MAX_SHOWN or (forms := notebook_display.forms_of(value, self._room)) is None:
                return
            self._shown.append(forms)

    def _show_figures(self) -> None:
        """Display the open figures of matplotlib and close them; replaces `pyplot.show`."""
        self._show(*notebook_display.take_figures())


def _is_silenced(cell: str, last: ast.Expr) -> bool:
    """Return whether a `;` follows the last expression, before any comment."""
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    line, *rest = cell.split("\n")[last.end_lineno - 1 :]
    tail = line.encode()[last.end_col_offset :].decode(errors="replace")
    return any(";" in part.partition("#")[0] for part in (tail, *rest))


def describe(error: BaseException, *, driver_file: str = "") -> tuple[str, str, str]:
    """Return class, text and traceback of a cell's exception, without the frames of this package and of `driver_file`."""
    report = traceback.TracebackException.from_exception(error)
    folder = os.path.dirname(__file__)
    outside = [
        frame for frame in report.stack if os.path.dirname(frame.filename) != folder and frame.filename != driver_file
    ]
    report.stack = traceback.StackSummary.from_list(outside)
    try:
        value = str(error)
    except BaseException as failure:  # noqa: BLE001 - a cell's own exception, which may raise `SystemExit`
        value = f"<no text: {type(failure).__name__}>"
    return type(error).__name__, value, "".join(report.format())
