"""Reference answers that files hold as numbers, or as the text of floats, equal what they mean."""

from typing import Any

from agentrl.rewards.math_answer import MathAnswerReward
from agentrl.types import Deadline, Prompt, Turn

SAME: list[tuple[Any, str]] = [
    (1e-05, "10^{-5}"),
    ("1e-05", "0.00001"),
    ("1e16", "10^{16}"),
    (1e16, "10000000000000000"),
    (42.0, "42"),
    (42, "42.0"),
    (0.5, r"\frac{1}{2}"),
]
OTHER: list[tuple[Any, str]] = [("1e-05", "0.00002"), (42.0, "43"), (1e16, "1"), (0.00001, "0")]


async def test_a_reference_answer_that_is_a_number_equals_what_it_means():
    reward = MathAnswerReward({})

    async def score(reference: Any, answer: str) -> float:
        prompt = Prompt(prompt_id="p", messages=[], answer=reference)
        said = (Turn(text=rf"\boxed{{{answer}}}"),)
        return await reward.score(prompt, said, deadline=Deadline.after(30))

    await reward.start()
    try:
        assert [await score(*pair) for pair in [*SAME, *OTHER]] == [1.0] * len(SAME) + [0.0] * len(OTHER)
    finally:
        await reward.aclose()
