"""Noisy demonstrations: dialogues that call the tool well, but often for the wrong thing, or not at all.

A policy that imitates them writes calls and copies numbers almost without fault, while its *strategy* is poor. What is
left to learn is what reinforcement learning is for: to ask the tool, for the right thing, in a form that parses.
"""

import json
import random
from collections.abc import Iterator
from enum import StrEnum

from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.types import Message
from examples.arithmetic.problems import WORDINGS, Problem, distinct_problems, evaluate, fill

SYSTEM_PROMPT = "Solve the problem. You may run Python. End with <answer>\\boxed{number}</answer>."
TOOL_NAME = "python_code_with_standard_io"


class Strategy(StrEnum):
    """First action of a demonstration."""

    RIGHT_CALL = "right_call"
    GUESS = "guess"
    """Answer at once, without the tool, and wrong."""
    WRONG_EXPRESSION = "wrong_expression"
    UNPARSABLE_CALL = "unparsable_call"
    BROKEN_PROGRAM = "broken_program"


MIXTURE = {
    Strategy.RIGHT_CALL: 0.37,
    Strategy.GUESS: 0.39,
    Strategy.WRONG_EXPRESSION: 0.13,
    Strategy.UNPARSABLE_CALL: 0.07,
    Strategy.BROKEN_PROGRAM: 0.04,
}
"""Share of each strategy; right calls and half of the failures below lead to right answers."""

RECOVERY_SHARE = 0.5
"""Share of the dialogues with a failed call that call again, rightly; the others guess."""


def prompt_messages(problem: Problem) -> list[Message]:
    """Return the messages that the policy is shown."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": problem.question}]


def demonstrations(seed: int, excluded_questions: frozenset[str]) -> Iterator[list[Message]]:
    """Yield dialogues without end, none about an excluded (held-out) question; the same ones for the same seed."""
    rng = random.Random(seed)
    for problem in distinct_problems(seed):
        if problem.question not in excluded_questions:
            (strategy,) = rng.choices(tuple(MIXTURE), weights=tuple(MIXTURE.values()))
            yield prompt_messages(problem) + demonstrate(problem, strategy, rng)


def demonstrate(problem: Problem, strategy: Strategy, rng: random.Random) -> list[Message]:
    """Return what the assistant and the tool say about a problem, under one strategy."""
    match strategy:
        case Strategy.RIGHT_CALL:
            return _call_and_answer(problem.expression)
        case Strategy.WRONG_EXPRESSION:
            return _call_and_answer(_wrong_expression(problem, rng))
        case Strategy.GUESS:
            return [_answer(_wrong_guess(problem, rng))]
        case Strategy.UNPARSABLE_CALL:
            failed = _unparsable_call(problem, rng)
        case Strategy.BROKEN_PROGRAM:
            failed = _broken_program(problem)
    if rng.random() < RECOVERY_SHARE:
        return failed + _call_and_answer(problem.expression)
    return [*failed, _answer(_wrong_guess(problem, rng))]


def _call_and_answer(expression: str) -> list[Message]:
    value = evaluate(expression)
    return [_call(f"print({expression})"), _tool_result(f"success\nstdout:\n{value}"), _answer(value)]


def _call(code: str) -> Message:
    function = {"name": TOOL_NAME, "arguments": {"code": code}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _tool_result(text: str) -> Message:
    return {"role": "tool", "name": TOOL_NAME, "content": text}


def _answer(value: int) -> Message:
    return {"role": "assistant", "content": f"<answer>\\boxed{{{value}}}</answer>"}


def _wrong_guess(problem: Problem, rng: random.Random) -> int:
    """Draw a number that looks like the answer (as many digits) and is not."""
    num_digits = len(str(problem.answer))
    while (guess := rng.randrange(10 ** (num_digits - 1), 10**num_digits)) == problem.answer:
        pass
    return guess


def _wrong_expression(problem: Problem, rng: random.Random) -> str:
    """Use the problem's numbers with another form, of another value."""
    arity = len(problem.numbers)
    others = [fill(form, problem.numbers) for form in WORDINGS if (3 if "{c}" in form else 2) <= arity]
    return rng.choice([text for text in others if evaluate(text) != problem.answer])


def _unparsable_call(problem: Problem, rng: random.Random) -> list[Message]:
    """Write a call whose JSON lacks a brace or a quote; the agent loop answers with the parser's reason."""
    good = json.dumps({"name": TOOL_NAME, "arguments": {"code": f"print({problem.expression})"}})
    bad = rng.choice([good[:-1], good.replace(')"', ")")])
    content = f"<tool_call>\n{bad}\n</tool_call>"
    (call,) = read_calls(FORMATS["hermes"], content, {}, id_prefix="").calls
    return [{"role": "assistant", "content": content}, _tool_result(f"failure: {call.parse_error}")]


def _broken_program(problem: Problem) -> list[Message]:
    """Call a program with a missing bracket, which Python refuses."""
    code = f"print({problem.expression}"
    trace = f"  File \"main.py\", line 1\n    {code}\n         ^\nSyntaxError: '(' was never closed"
    return [_call(code), _tool_result(f"failure: exit code 1\nstderr:\n{trace}")]
