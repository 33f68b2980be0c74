"""Calls written as Python: `[search(query="x"), add(a=1, b=2)]`, as the whole turn (Llama 3.2 and 4) or between tags (LFM2)."""

import ast
import re
import warnings
from typing import Any

from agentrl.formats.arguments import Parameters
from agentrl.formats.base import CallFormat, MalformedCallError, RawCall

_JSON_NAMES = {"true": True, "false": False, "null": None}
_FILE = "<calls of a policy>"
# Python warns on the console of escapes that it does not know, such as in the LaTeX that a policy writes.
warnings.filterwarnings("ignore", module=_FILE)
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class PythonicFormat(CallFormat):
    """A list of Python calls with literal keyword arguments; nothing is evaluated."""

    def __init__(self, name: str, *, opening: str, closing: str) -> None:
        """Take the pattern before the list, and the text behind it, which may be absent."""
        self.name = name
        self.opening = re.compile(opening)
        self._closing = closing

    def read(self, text: str, opening: re.Match[str], parameters: Parameters) -> tuple[list[RawCall], int]:
        """Read the list of calls."""
        end = text.rfind("]") + 1 or len(text)
        if self._closing and (closing := text.find(self._closing, opening.end())) >= 0:
            end = closing
        try:
            listed = ast.parse(text[opening.end() : end].strip(), _FILE, mode="eval").body
            calls = [_call_of(call) for call in (listed.elts if isinstance(listed, ast.List) else [listed])]
        except _PARSE_ERRORS as error:
            raise MalformedCallError(f"the list of calls is not valid Python: {error}", end=len(text)) from None
        return calls, end + len(self._closing) if text.startswith(self._closing, end) else end


def _call_of(call: ast.expr) -> RawCall:
    prefix = ""
    if isinstance(call, ast.BinOp):  # to Python, `look-up(...)` is a difference
        prefix, call = ast.unparse(call.left).replace(" ", "") + "-", call.right
    if not isinstance(call, ast.Call):
        return RawCall(error="the list holds something that is not a call")
    name = prefix + ast.unparse(call.func)
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return RawCall(name=name, error="arguments must be given by name")
    return RawCall(name=name, arguments={str(keyword.arg): _literal(keyword.value) for keyword in call.keywords})


def _literal(value: ast.expr) -> Any:
    """Return the value of a literal, which may contain JSON's `true`, `false` and `null`."""
    return ast.literal_eval(_JsonNames().visit(value))


class _JsonNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


PYTHONIC = PythonicFormat(
    "pythonic", opening=r"\A\s*(?:<\|python_start\|>)?(?=\[\s*[A-Za-z_][\w.]*\()", closing="<|python_end|>"
)
LFM2 = PythonicFormat("lfm2", opening=r"<\|tool_call_start\|>(?=\s*\[)", closing="<|tool_call_end|>")
