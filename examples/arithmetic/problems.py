"""Word problems with exact integer answers: one operation on numbers of up to four digits, or two on smaller ones.

The vocabulary is small and the numbers stand in the question in the order in which a program needs them, because the
policy that solves them has about a million parameters: it copies numbers, it does not know arithmetic.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

ITEMS = ("pens", "books", "eggs", "cups", "coins", "apples", "cards", "stamps")

WORDINGS: dict[str, tuple[str, ...]] = {
    "{a} + {b}": (
        "A shop has {a} {item} and buys {b} more. How many {item} does it have now?",
        "There are {a} {item} in one box and {b} in another. How many {item} are there in all?",
        "Tom has {a} {item}. Ann has {b} more than Tom. How many {item} does Ann have?",
    ),
    "{a} - {b}": (
        "A shop has {a} {item} and sells {b}. How many {item} are left?",
        "Ann had {a} {item}. She gave {b} to Tom. How many {item} does Ann have now?",
        "Tom has {a} {item}. Ann has {b} fewer than Tom. How many {item} does Ann have?",
    ),
    "{a} * {b}": (
        "A box holds {a} {item}. How many {item} are there in {b} boxes?",
        "Each of {a} people buys {b} {item}. How many {item} do they buy in all?",
        "A shop sells {a} {item} a day. How many {item} does it sell in {b} days?",
    ),
    "{a} // {b}": (
        "Tom shares {a} {item} equally among {b} people. How many {item} does each get?",
        "A shop puts {a} {item} into boxes of {b}. How many boxes does it fill?",
    ),
    "{a} + {b} - {c}": (
        "A shop has {a} {item}, buys {b} more and sells {c}. How many {item} are left?",
        "Ann had {a} {item}. She found {b} and gave {c} to Tom. How many {item} does Ann have now?",
    ),
    "{a} * {b} + {c}": (
        "There are {a} boxes of {b} {item} and {c} more on the table. How many {item} are there in all?",
        "Each of {a} people has {b} {item}, and Tom has {c}. How many {item} do they have in all?",
    ),
    "{a} * {b} - {c}": ("A shop has {a} boxes of {b} {item} and sells {c} of the {item}. How many {item} are left?",),
    "({a} + {b}) * {c}": ("A box holds {a} red and {b} blue {item}. How many {item} are there in {c} boxes?",),
}
"""Formula of each kind of problem, and its wordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One word problem.

    Example: `Problem(question="A shop has 431 pens and sells 27. How many pens are left?", form="{a} - {b}",
    numbers=(431, 27))`, whose `expression` is `431 - 27` and whose `answer` is 404.
    """

    question: str
    form: str
    """A key of `WORDINGS`."""
    numbers: tuple[int, ...]

    @property
    def expression(self) -> str:
        """The Python expression that solves it."""
        return fill(self.form, self.numbers)

    @property
    def answer(self) -> int:
        """The value of the expression."""
        return evaluate(self.expression)


def fill(form: str, numbers: tuple[int, ...]) -> str:
    """Put numbers into the places `{a}`, `{b}`, `{c}` of a form."""
    return form.format(**dict(zip("abc", numbers, strict=False)))


def evaluate(expression: str) -> int:
    """Compute an expression that this module built from its own forms."""
    return int(eval(expression, {"__builtins__": {}}))


def distinct_problems(seed: int) -> Iterator[Problem]:
    """Yield problems without end, no question twice: the same sequence for the same seed."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while True:
        problem = _draw(rng)
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem


def _draw(rng: random.Random) -> Problem:
    form = rng.choice(tuple(WORDINGS))
    numbers = _draw_numbers(rng, form)
    question = rng.choice(WORDINGS[form]).replace("{item}", rng.choice(ITEMS))
    return Problem(question=fill(question, numbers), form=form, numbers=numbers)


def _draw_numbers(rng: random.Random, form: str) -> tuple[int, ...]:
    """Draw operands whose lengths are spread evenly: a model that only meets long numbers never learns to copy."""
    if form == "{a} // {b}":
        quotient, divisor = _number(rng, 2, 2), _number(rng, 1, 2)
        return quotient * divisor, divisor
    if "{c}" in form:
        a, b, c = _number(rng, 2, 2), _number(rng, 1, 2), _number(rng, 1, 2)
        return a, b, min(c, evaluate(fill(form.rpartition(" - ")[0], (a, b))) - 1) if " - " in form else c
    a, b = _number(rng, 2, 4), _number(rng, 1, 3)
    return (max(a, b), min(a, b)) if form == "{a} - {b}" else (a, b)


def _number(rng: random.Random, min_digits: int, max_digits: int) -> int:
    digits = rng.randint(min_digits, max_digits)
    return rng.randint(max(2, 10 ** (digits - 1)), 10**digits - 1)
