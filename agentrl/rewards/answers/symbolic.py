"""Equality of two single values by sympy; imported in the comparison processes only."""

import math
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, latex2sympy, normalize_latex
from math_verify.grader import should_treat_as_complex, verify
from sympy.functions.combinatorial.factorials import CombinatorialFunction

from agentrl.rewards.answers.text import close

_NORMALISATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\{])i(?![a-zA-Z])")
_MAX_LOG10 = 20_000.0
"""Decimal digits of the largest computed number."""
_GROWING = (sympy.Pow, CombinatorialFunction, sympy.gamma)
_MAX_TERMS = 5_000
_DIGITS = 30
_RELATIVE_ERROR = sympy.Float("1e-18", _DIGITS)


def equal_values(reference: str, answer: str) -> bool:
    """Return whether two values are equal; False if one cannot be parsed."""
    is_complex = any(should_treat_as_complex(text) or _IMAGINARY.search(text) for text in (reference, answer))
    try:
        wanted, given = _parsed(reference, is_complex), _parsed(answer, is_complex)
    except Exception:  # noqa: BLE001 - the parser raises anything
        return False
    if _is_scalar(wanted) != _is_scalar(given) or given.has(sympy.nan, sympy.zoo):
        return False
    if not (_is_bounded(wanted) and _is_bounded(given)):
        return False
    if _is_scalar(wanted) and not wanted.free_symbols:
        return not given.free_symbols and _equal_numbers(wanted, given)
    if isinstance(wanted, sympy.Eq) and isinstance(given, sympy.Eq):
        return _equal_equations(wanted, given)
    return bool(verify(wanted, given, timeout_seconds=0, allow_set_relation_comp=True))


def _parsed(text: str, is_complex: bool) -> Any:
    text = normalize_latex(text, _NORMALISATION)
    expression: Any = latex2sympy(text, is_real=not is_complex, convert_degrees=False, normalization_config=None)
    imaginary = {symbol: sympy.I for symbol in expression.free_symbols if is_complex and symbol.name == "i"}
    return expression.subs(imaginary) if imaginary else expression


def _is_scalar(expression: Any) -> bool:
    return isinstance(expression, sympy.Expr) and not isinstance(expression, sympy.MatrixBase | sympy.MatrixExpr)


def _equal_numbers(wanted: Any, given: Any) -> bool:
    wanted, given = wanted.doit(), given.doit()
    if wanted.is_Rational and given.is_Rational:
        return bool(wanted == given)
    first, second = wanted.evalf(_DIGITS), given.evalf(_DIGITS)
    if not all(value.is_number and not value.has(sympy.nan, sympy.zoo) for value in (first, second)):
        return False
    if first.is_infinite or second.is_infinite:
        return bool(first == second)
    if wanted.has(sympy.Float) or given.has(sympy.Float):
        return all(
            close(_fraction(part(first)), _fraction(part(second))) or part(first) == part(second)
            for part in (sympy.re, sympy.im)
        )
    return bool(sympy.Abs(first - second) <= _RELATIVE_ERROR * max(sympy.Abs(first), sympy.Abs(second)))


def _equal_equations(wanted: Any, given: Any) -> bool:
    """Return whether one equation is a multiple of the other."""
    ratio = sympy.simplify((wanted.lhs - wanted.rhs) / (given.lhs - given.rhs))
    return bool(ratio.is_number and ratio.is_nonzero and ratio.is_finite)


def _fraction(value: Any) -> Fraction:
    return Fraction(str(sympy.Float(value, _DIGITS)))


def _is_bounded(expression: Any) -> bool:
    """Return whether no power, factorial or expansion in it is too large to compute."""
    try:
        if any(_num_terms(node) > _MAX_TERMS for node in expression.atoms(sympy.Pow)):
            return False
        nodes = (node for node in sympy.preorder_traversal(expression) if isinstance(node, _GROWING))
        return all(_log10(node) <= _MAX_LOG10 for node in nodes)
    except (TypeError, ValueError, OverflowError):
        return False


def _num_terms(power: sympy.Pow) -> int:
    """Return the number of terms of an expanded power of a sum."""
    base, exponent = power.args
    if not (isinstance(base, sympy.Add) and base.free_symbols and exponent.is_Integer and exponent > 0):
        return 1
    return math.comb(int(exponent) + len(base.args) - 1, len(base.args) - 1)


def _log10(node: Any) -> float:
    """Return an upper bound of the logarithm of the absolute value; 0 with free symbols."""
    if node.free_symbols:
        return 0.0
    if node.is_Number:
        return float(sympy.log(abs(node), 10).evalf(5)) if node else 0.0
    parts = [_log10(argument) for argument in node.args]
    match node:
        case sympy.Pow():
            exponent = 10.0 ** min(parts[1], 300.0)
            return abs(parts[0]) * exponent
        case CombinatorialFunction() | sympy.gamma():
            value = 10.0 ** min(max(parts), 300.0)
            return value * max(1.0, math.log10(value)) if value > 1 else 1.0
        case sympy.Add():
            return max(parts) + math.log10(len(parts))
        case sympy.Mul():
            return sum(parts)
    return max(map(abs, parts), default=1.0)
