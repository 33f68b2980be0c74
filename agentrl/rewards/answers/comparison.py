r"""Equality of two answers by their structure: relations, lists, intervals; a function compares single values.

An answer is right if all of its parts are: each member of `6 * 7 = 42`, each value of a list of the reference's length. So an
answer with further values, or with a relation that the reference lacks, is wrong.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.rewards.answers.text import (
    closes_at_end,
    is_words,
    nesting,
    normalised,
    plain_number,
    same_text,
    without_unit,
)

Comparison = Callable[[str, str], bool]
"""Returns whether two single values, `(reference, answer)`, are equal."""

_MAX_CHARS = 500
_MAX_DIGITS = 400
_MAX_NESTING = 20

_RELATION = re.compile(
    r"\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|notin|in|ni|subset|subseteq|supset|to|rightarrow|Rightarrow|implies|iff|"
    r"Leftrightarrow|propto|ll|gg|prec|succ|doteq|mapsto|neg|lnot|not|lor|vee|land|wedge|mid|nmid|perp|parallel|pmod|bmod|mod)"
    r"(?![a-zA-Z])|:=|={1,2}|<|>"
)
_FLIPPED = {">": "<", r"\ge": r"\le", "==": "=", ":=": "="}
_EQUALS = re.compile(r":=|==?")
_LETTER = r"(?:\\(?!pi|infty|frac|sqrt)[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{\w+\}))?'*"
_NAME = re.compile(
    rf"(?:\\text\{{[a-zA-Z '-]+\}}"
    rf"|(?:\\(?:angle|overline|triangle|vec|hat|bar)\s*)?\|?\{{?{_LETTER}(?:\s*{_LETTER}){{0,3}}\}}?\|?"
    rf"|{_LETTER}(?:\s*\+\s*{_LETTER})+|[a-zA-Z]\s*\([a-zA-Z0-9, ]+\))\s*"
)
_IN = re.compile(rf"\s*{_LETTER}\s*\\in\s+(?=[\[(\\])")
_CONNECTIVE = re.compile(r"\s*,?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*,?\s*|;")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s?%?")
_BINDER = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|limsup|liminf|det|gcd|lcm|max|min|frac\s*\{\s*d\s*\}|partial)(?![a-zA-Z])|\bd/d"
)
_UNFINISHED = re.compile(r"\d\s+\d|\\[lc]?dots|\.\.\.")
"""Adjacent numbers, which sympy would add, and dots, which it would skip."""
_BASE = re.compile(r"(?P<digits>[0-9a-zA-Z]+)\s*_\s*(?:\{\s*(?:\\text\{)?\s*(?P<base>\w+)\s*\}?\s*\}|(?P<digit>\d))")


def equal_answers(reference: str, answer: str, equal_values: Comparison) -> bool:
    r"""Return whether `answer` equals `reference`; `equal_values` compares single values that their text does not decide."""
    if same_text(reference, answer):
        return True
    if is_hopeless(answer, reference):
        return False
    reference, answer = normalised(reference), normalised(answer)
    return same_text(reference, answer) or _equal_statements(reference, answer, equal_values)


class _UndecidedError(Exception):
    """The text does not decide the comparison."""


def equal_by_text(reference: str, answer: str) -> bool | None:
    """Return the result of `equal_answers`, or None if an expression must be evaluated for it."""

    def undecided(*_: str) -> bool:
        raise _UndecidedError

    try:
        return equal_answers(reference, answer, undecided)
    except _UndecidedError:
        return None


def is_hopeless(answer: str, reference: str = "") -> bool:
    """Return whether `answer` is too long or nested to compare."""
    if len(answer) > max(_MAX_CHARS, 4 * len(reference)) or re.search(rf"\d{{{_MAX_DIGITS},}}", answer):
        return True
    return nesting(answer) > max(_MAX_NESTING, nesting(reference))


def _equal_statements(reference: str, answer: str, equal_values: Comparison) -> bool:
    wanted, given = _relations(reference), _relations(answer)
    name, value = _assigned(reference)
    answer_name, answer_value = _assigned(answer)
    if name and wanted == given and not same_text(name, answer_name):
        return wanted.total() == 1 and equal_values(reference, answer)
    reference, answer = value, answer_value
    wanted, given = _relations(reference), _relations(answer)
    if not wanted:
        members = _EQUALS.split(answer)
        if set(given) <= {"="}:
            return all(member.strip() and _equal_values(reference, member.strip(), equal_values) for member in members)
        return _is_interval(reference) and equal_values(reference, answer)
    items, others = _split(reference), _split(answer)
    if len(items) > 1 or len(others) > 1:
        return (
            wanted == given
            and len(items) == len(others)
            and _match(items, others, lambda first, second: _equal_statements(first, second, equal_values))
        )
    if wanted != given and (given or not _is_interval(answer)):
        return False
    return equal_values(reference, answer)


def _assigned(text: str) -> tuple[str, str]:
    r"""Return the name and the value of `x = 42`, `x \in [1, 2]` or `x = 1, x = 2`; the name is empty for anything else."""
    if match := _IN.match(text):
        return "", text[match.end() :]
    pairs = [_EQUALS.split(item, maxsplit=1) for item in _split(text)]
    names = {pair[0].strip() for pair in pairs if len(pair) == 2}
    if len(names) != 1 or not _NAME.fullmatch(name := names.pop()) or len(pairs[0]) != 2:
        return "", text
    return name, ", ".join(pair[-1].strip() for pair in pairs)


def _relations(text: str) -> Counter[str]:
    relations = (match[0] for match in _RELATION.finditer(text))
    return Counter(_FLIPPED.get(relation, relation) for relation in relations)


def _equal_values(reference: str, answer: str, equal_values: Comparison) -> bool:
    """Compare two values or collections of values without a relation."""
    if same_text(reference, answer):
        return True

    def equal(left: str, right: str) -> bool:
        return _equal_values(left, right, equal_values)

    first, second = _Collection.read(reference), _Collection.read(answer)
    if "union" in (first.kind, second.kind) or r"\mathbb" in reference:
        if first.kind == second.kind and len(first.items) == len(second.items):
            return _match(first.items, second.items, equal)
        return first.kind in _SET_KINDS and second.kind in _SET_KINDS and equal_values(reference, answer)
    if len(first.items) != len(second.items) or not first.takes(second):
        return False
    if first.kind == second.kind == "value":
        return _equal_scalars(first.items[0], second.items[0], equal_values)
    if first.kind in _UNORDERED and second.kind in _UNORDERED:
        return _match(first.items, second.items, equal)
    return all(map(equal, first.items, second.items))


_UNORDERED = ("list", "set", "value")
_SET_KINDS = ("union", "set", "value", "(]", "[)", "[]", "()")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collection:
    """Items of an answer. Example: `[1, 2)` has the kind `[)` and the items `1` and `2`; `42` has the kind `value`."""

    kind: str
    items: list[str]

    @classmethod
    def read(cls, text: str) -> "_Collection":
        if _THOUSANDS.fullmatch(text):
            return cls(kind="value", items=[text])
        if len(parts := _split(text, separator=r"\cup")) > 1:
            return cls(kind="union", items=parts)
        if len(parts := _split(text)) > 1:
            return cls(kind="list", items=[value for part in parts for value in _both_signs(part)])
        if text.startswith(r"\{") and text.endswith(r"\}"):
            inner = text[2:-2].strip()
            return cls(kind="set", items=cls.read(inner).items if inner else [])
        if text[:1] in "([" and text[-1:] in ")]" and closes_at_end(text, 0) and len(parts := _split(text[1:-1])) > 1:
            return cls(kind=text[0] + text[-1], items=parts)
        if text.startswith("(") and closes_at_end(text, 0) and text.endswith(")"):
            return cls.read(text[1:-1].strip())
        signs = _both_signs(text)
        return cls(kind="list" if len(signs) > 1 else "value", items=signs)

    def takes(self, other: "_Collection") -> bool:
        """Return whether an answer may have the form of `other` if this is the reference."""
        same = self.kind == other.kind or (self.kind in _UNORDERED and other.kind in _UNORDERED)
        return same or {self.kind, other.kind} == {"list", "()"}


def _both_signs(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    pairs = (((r"\pm", "+"), (r"\mp", "-")), ((r"\pm", "-"), (r"\mp", "+")))
    return [re.sub(r"^\s*\+\s*", "", text.replace(*first).replace(*second)) for first, second in pairs]


def _equal_scalars(reference: str, answer: str, equal_values: Comparison) -> bool:
    reference, answer = without_unit(reference), without_unit(answer)
    if same_text(reference, answer):
        return True
    if not answer or is_words(reference) or is_words(answer):
        return False
    plain = (reference.rstrip("% "), answer.rstrip("% "))
    if reference.endswith("%") == answer.endswith("%"):
        return _equal_numbers(*plain, equal_values)
    # `5%` is `5` or `0.05`.
    wanted, given = (re.sub(r"(.*)%$", r"\\frac{\1}{100}", text) for text in (reference, answer))
    return _equal_numbers(*plain, equal_values) or _equal_numbers(wanted, given, equal_values)


def _equal_numbers(reference: str, answer: str, equal_values: Comparison) -> bool:
    wanted, given = plain_number(reference), plain_number(answer)
    if wanted is not None and given is not None:
        return wanted.equals(given)
    base, other = _BASE.fullmatch(reference), _BASE.fullmatch(answer)
    if base or other:  # the reference `1011_2` takes `1011`, and `1011` does not take `1011_2`
        digits_only = base is not None and same_text(base["digits"], answer)
        return digits_only or (base is not None and other is not None and _base(base) == _base(other))
    if _UNFINISHED.search(answer) or set(_BINDER.findall(answer)) - set(_BINDER.findall(reference)):
        return False
    return equal_values(reference, answer)


def _base(match: re.Match[str]) -> tuple[str, str]:
    return match["digits"], match["base"] or match["digit"]


def _is_interval(text: str) -> bool:
    parts = _split(text, separator=r"\cup")
    return all(part[:1] in "([" and part[-1:] in ")]" and len(_split(part[1:-1])) == 2 for part in parts)


def _split(text: str, *, separator: str = ",") -> list[str]:
    """Split at separators outside of brackets; `and` and `or` separate too, the commas of thousands do not."""
    if separator == ",":
        if _THOUSANDS.fullmatch(text):
            return [text]
        text = _CONNECTIVE.sub(",", text)
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0 and text.startswith(separator, index):
            parts.append(text[start:index].strip())
            start = index + len(separator)
    parts.append(text[start:].strip())
    return parts


def _match(references: Sequence[str], answers: Sequence[str], equal: Comparison) -> bool:
    """Return whether the answers match the references one to one, in any order."""
    left = list(answers)
    for reference in references:
        found = next((answer for answer in left if equal(reference, answer)), None)
        if found is None:
            return False
        left.remove(found)
    return True
