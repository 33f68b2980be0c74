"""Conversion of a reward's return value to a number and its breakdown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import UnexplainedError
from agentrl.user_code import contained

SCORE_KEY = "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of one trajectory, and its breakdown.

    Example: `{"score": 0.9, "accuracy": True, "predicted": "42"}` becomes `Score(value=0.9, metrics={"accuracy": 1.0})`.
    """

    value: float
    metrics: dict[str, float] = field(default_factory=dict)


def read_score(returned: Any, *, where: str) -> Score:
    """Return the score from a reward's return value.

    Args:
        returned: a number (bool, NumPy scalar, array or tensor without dimensions included), or a mapping with the number in
            `score`. Its other finite numbers are metrics; all other entries are dropped.
        where: start of the error message.

    Raises:
        UnexplainedError: it is neither, or the number is not finite.
    """
    if isinstance(returned, Mapping):
        if SCORE_KEY not in returned:
            keys = ", ".join(f"`{key}`" for key in returned) or "no key"
            raise UnexplainedError(f"{where} is a mapping with {keys}; it must have `{SCORE_KEY}`", cause="no `score`")
        metrics = {str(name): _number(value) for name, value in returned.items() if name != SCORE_KEY}
        known = {name: number for name, number in metrics.items() if math.isfinite(number)}
        return Score(value=finite_number(returned[SCORE_KEY], where), metrics=known)
    return Score(value=finite_number(returned, where))


def finite_number(value: Any, where: str) -> float:
    """Return a number that user code gave as a float; UnexplainedError if it is none, or not finite."""
    if not math.isfinite(number := _number(value)):
        raise UnexplainedError(f"{where} is {value!r:.100}, and must be a finite number", cause="no number")
    return number


def _number(value: Any) -> float:
    """Return `value` as a float; NaN if it is no number, or a number as text."""
    if isinstance(value, str | bytes | bytearray):
        return math.nan
    try:
        return contained(float, value)
    except Exception:  # noqa: BLE001 - its `__float__` may be the user's own; torch raises RuntimeError for several elements
        return math.nan
