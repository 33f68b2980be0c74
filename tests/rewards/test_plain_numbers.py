"""Numbers that files hold as floats equal what they mean; the comparisons are those of math-verify itself."""

from typing import Any

import pytest

from agentrl.rewards.math_answer import MathAnswerReward
from agentrl.rewards.plain_numbers import number_text, without_exponent
from agentrl.types import Deadline, Prompt, Turn


@pytest.mark.parametrize(
    ("number", "text"),
    [(42.0, "42"), (-3.0, "-3"), (0.1, "0.1"), (1e-05, "0.00001"), (1e16, "10000000000000000"), (2**70, str(2**70))],
)
def test_a_number_is_written_out(number: float, text: str):
    assert number_text(number) == text


@pytest.mark.parametrize("text", ["1e999999999", "x + 1e5", "2e", "e5", "1e5e5", "0.5"])
def test_what_is_no_number_of_a_float_stays_as_it_is(text: str):
    assert without_exponent(text) == text


async def test_answers_written_as_floats_equal_what_they_mean():
    reward = MathAnswerReward({})

    async def score(reference: Any, answer: str) -> float:
        prompt = Prompt(prompt_id="p", messages=[], answer=reference)
        said = (Turn(text=rf"<answer>\boxed{{{answer}}}</answer>"),)
        return await reward.score(prompt, said, deadline=Deadline.after(30))

    await reward.start()
    try:
        pairs = [
            (1e-05, "10^{-5}"),
            ("1e-05", "0.00001"),
            ("1e16", "10^{16}"),
            (42.0, "42"),
            (0.5, r"\frac{1}{2}"),
            (1e16, "1E16"),
        ]
        assert [await score(*pair) for pair in pairs] == [1.0] * len(pairs)
        assert [await score("1e-05", "0.00002"), await score(42.0, "43")] == [0.0, 0.0]
    finally:
        await reward.aclose()
