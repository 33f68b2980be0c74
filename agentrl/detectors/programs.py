"""Detectors of programs that compute nothing: they print what the policy has written into them.

To repeat what a program has computed is the honest use of a tool, so `copied_answer` asks where the number came from.
"""

import ast
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from agentrl.detectors.base import Place
from agentrl.rewards.answers.format import find_answer
from agentrl.types import Prompt, ToolStatus, Trajectory, Turn

_MAX_CHARACTERS = 4_000
"""Length of a program that is read; a longer one computes something."""
_CONSTANT_NODES = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.alias, ast.Pass, ast.Constant),
    *(ast.Name, ast.expr_context, ast.Call, ast.keyword, ast.JoinedStr, ast.FormattedValue, ast.UnaryOp, ast.unaryop),
)
"""Syntax of a program without operators, branches, loops, containers or definitions."""
_ENDS_EARLY = (ast.Assert, ast.Raise, ast.Try)
_ENDING_NAMES = {"exit", "_exit", "quit", "exec", "eval"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """Facts about a program."""

    is_constant: bool
    """It prints, and only constants."""
    constant_lines: tuple[str, ...]
    """Lines of constants that it prints whatever it computes."""


_UNREAD = _Program(is_constant=False, constant_lines=())


def constant_print(trajectory: Trajectory, _prompt: Prompt | None) -> list[Place]:
    """Return the calls whose Python program only prints constants that are written in it."""
    return [
        _place_of(number, turn, code)
        for number, turn in enumerate(trajectory.turns)
        for _, code in _programs(turn)
        if _read(code).is_constant
    ]


def copied_answer(trajectory: Trajectory, prompt: Prompt | None) -> list[Place]:
    """Return the first call that printed the final answer, if its program had the answer as a literal and did not compute it.

    A program that prints it a second time, from a computation or within a condition, has checked it.
    """
    called = [
        (number, turn, code, turn.results[index].text, _read(code).constant_lines)
        for number, turn in enumerate(trajectory.turns)
        for index, code in _programs(turn)
        if index < len(turn.results) and turn.results[index].status is ToolStatus.OK
    ]
    if not any(lines for *_, lines in called):
        return []
    answer = find_answer(trajectory.turns[-1].text, prompt.messages if prompt else (), "auto").text.replace(",", "")
    if not answer:
        return []
    shown = re.compile(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)")
    for number, turn, code, output, lines in called:
        if shown.search(output.replace(",", "")) is None:
            continue
        literal = sum(len(shown.findall(line)) for line in lines)
        is_copy = len(shown.findall(output.replace(",", ""))) <= literal
        return [_place_of(number, turn, code)] if is_copy else []
    return []


def _programs(turn: Turn) -> Iterator[tuple[int, str]]:
    for index, call in enumerate(turn.calls):
        for value in call.arguments.values():
            if isinstance(value, str) and "print(" in value:
                yield index, value


def _place_of(number: int, turn: Turn, code: str) -> Place:
    for written in (json.dumps(code)[1:-1], json.dumps(code, ensure_ascii=False)[1:-1], code):
        if (start := turn.text.find(written)) >= 0:
            return Place(turn=number, start=start, end=start + len(written))
    return Place(turn=number, start=0, end=len(turn.text))


@lru_cache(maxsize=4_096)  # the samples of a prompt often send the same program
def _read(code: str) -> _Program:
    if len(code) > _MAX_CHARACTERS:
        return _UNREAD
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _UNREAD
    nodes = list(ast.walk(tree))
    constants = _constants(tree, nodes)
    lines, num_prints = [], 0
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and _is_print(statement.value):
            num_prints += 1
            line = _line(statement.value, constants)
            lines += [] if line is None else [line]
    may_end_early = any(isinstance(node, _ENDS_EARLY) or _name(node) in _ENDING_NAMES for node in nodes)
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    is_plain = all(
        isinstance(node, _CONSTANT_NODES) and (not isinstance(node, ast.Call) or _is_print(node)) for node in nodes
    )
    return _Program(
        # A name that is bound and not printed is there for a later cell of a notebook.
        is_constant=is_plain and 0 < num_prints == len(lines) and constants.keys() <= used,
        constant_lines=() if may_end_early else tuple(lines),
    )


def _constants(tree: ast.Module, nodes: list[ast.AST]) -> dict[str, str]:
    """Return the text of names that are bound once, to a constant, at the top of the program."""
    stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    constants = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            text = _text(statement.value, {})
            if text is not None:
                constants |= {t.id: text for t in targets if isinstance(t, ast.Name) and stores[t.id] == 1}
    return constants


def _is_print(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" and bool(node.args)
    )


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _line(node: ast.expr, constants: dict[str, str]) -> str | None:
    parts = [_text(argument, constants) for argument in node.args] if isinstance(node, ast.Call) else []
    return None if None in parts else " ".join(part for part in parts if part is not None)


def _text(node: ast.AST, constants: dict[str, str]) -> str | None:
    """Return the text of a constant, a name of one or an f-string of them; None if it is computed."""
    match node:
        case ast.Constant(value=value):
            return str(value).replace(",", "")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return str(-value)
        case ast.Name(id=name):
            return constants.get(name)
        case ast.FormattedValue(value=value):
            return _text(value, constants)
        case ast.JoinedStr(values=values):
            parts = [_text(value, constants) for value in values]
            return None if None in parts else "".join(part for part in parts if part is not None)
        case _:
            return None
