"""The cells of a session: runs one in the module `__main__`, as a notebook does, and describes what came of it.

Runs inside the jail, among the session's own code: what it says of a cell concerns nobody but the author of the cells.
"""

import ast
import inspect
import linecache
import sys
import traceback
import types

_RICH_FORMS = {
    "text/html": "_repr_html_",
    "text/latex": "_repr_latex_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
}
_NAME = "Cell In[{number}]"
MAX_SHOWN = 1000
"""Values of one cell that are displayed."""


class Notebook:
    """Runs cells in one namespace, which is the module `__main__` to them."""

    def __init__(self) -> None:
        self._module = sys.modules["__main__"] = types.ModuleType("__main__")
        self._module.__dict__.update(display=self._show)
        self._max_chars = 0
        self._room = 0
        self._shown: list[dict[str, str]] = []

    def run(self, cell: str, *, number: int, max_chars: int) -> tuple[dict[str, object], int]:
        """Run a cell; return what it showed and what it raised if it did, and the exit code of a program that ends so.

        Args:
            cell: Python, in which `await` may stand at the top.
            number: Names it in tracebacks.
            max_chars: Length of all that it shows together, and of each text about what it raised.
        """
        self._max_chars = self._room = max_chars
        self._shown = []
        name = _NAME.format(number=number)
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        try:
            self._execute(cell, name)
        except BaseException as raised:  # noqa: BLE001 - whatever a cell raises, `SystemExit` too, is its result
            return {"display": self._shown, "error": self._described(raised)}, _exit_code(raised)
        return {"display": self._shown, "error": None}, 0

    def _execute(self, cell: str, name: str) -> None:
        tree = compile(cell, name, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body[-1] if tree.body else None
        shown = ast.Expression(last.value) if isinstance(last, ast.Expr) and not cell.rstrip().endswith(";") else None
        if shown is not None:
            tree.body.pop()
        self._evaluate(tree, name, "exec")
        if shown is not None and (value := self._evaluate(shown, name, "eval")) is not None:
            self._module.__dict__["_"] = value
            self._show(value)

    def _evaluate(self, tree: ast.Module | ast.Expression, name: str, mode: str) -> object:
        code = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(code, self._module.__dict__)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        import asyncio  # here, because few cells await anything

        with asyncio.Runner() as runner:  # of this cell: what an event loop polls would be shared between snapshots
            return runner.run(value)

    def _show(self, *values: object) -> None:
        for value in values:
            if self._room <= 0 or len(self._shown) == MAX_SHOWN:
                return
            forms = {"text/plain": repr(value)[: self._room]}
            self._room -= len(forms["text/plain"])
            for kind, method in _RICH_FORMS.items():
                make = getattr(type(value), method, None)
                if make is not None and isinstance(form := make(value), str) and len(form) <= self._room:
                    forms[kind] = form  # half a picture is none
                    self._room -= len(form)
            self._shown.append(forms)

    def _described(self, error: BaseException) -> dict[str, str]:
        report = traceback.TracebackException.from_exception(error)
        report.stack = traceback.StackSummary.from_list([frame for frame in report.stack if frame.filename != __file__])
        try:
            value = str(error)
        except Exception as failure:  # noqa: BLE001 - a cell's own exception
            value = f"<no text: {type(failure).__name__}>"
        texts = {"name": type(error).__name__, "value": value, "traceback": "".join(report.format())}
        return {name: text[: self._max_chars] for name, text in texts.items()}


def _exit_code(error: BaseException) -> int:
    """Return that of an exception, which is never 0: what raises leaves no snapshot, even a clean `SystemExit`."""
    code = error.code if isinstance(error, SystemExit) else None
    return code & 0xFF or 1 if isinstance(code, int) else 1
