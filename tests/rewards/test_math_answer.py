import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.answers.format import find_answer
from agentrl.rewards.loader import build_reward
from agentrl.rewards.math_answer import AnswerStats, MathAnswerReward
from agentrl.types import Deadline, Prompt, ToolResult, ToolStatus, Turn


@pytest.fixture
async def reward() -> AsyncIterator[MathAnswerReward]:
    built = MathAnswerReward({}, answer_format="tagged")
    yield built
    await built.aclose()


async def score(reward: MathAnswerReward, answer: str, *texts: str) -> float:
    turns = tuple(Turn(text=text) for text in texts)
    return await reward.score(Prompt(prompt_id="p", messages=[], answer=answer), turns, deadline=Deadline.after(30))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}"),
        (r"<answer>first \boxed{4}, then \boxed{5}</answer>", "5"),
        (r"<answer>\boxed{4}</answer> no: <answer>\boxed{5}</answer>", "5"),
        (r"<answer>\boxed {5}</answer>", "5"),
        (r"<answer>\boxed{\{1, 2\}}</answer>", r"\{1, 2\}"),
        (r"<answer><answer>\boxed{5}</answer>", "5"),
        (r"\boxed{5}", ""),
        (r"<answer>5</answer>", "5"),
        (r"<answer>\boxed{5}", ""),
        (r"\boxed{5}</answer>", ""),
        (r"\boxed{5} <answer>five</answer>", "five"),
        (r"<answer>\boxed{5</answer>", ""),
        (r"</answer>\boxed{5}<answer>", ""),
        ("", ""),
    ],
)
def test_the_answer_is_the_last_box_or_the_text_of_the_last_answer_block(text: str, answer: str) -> None:
    assert find_answer(text, [], "tagged").text == answer


async def test_an_exact_answer_needs_no_process(reward: MathAnswerReward) -> None:
    assert await score(reward, "458", r"<answer>\boxed{458}</answer>") == 1.0
    assert reward._pool._server is None


async def test_no_answer_is_worth_nothing(reward: MathAnswerReward) -> None:
    assert await score(reward, "458", "I do not know") == 0.0
    assert await score(reward, "458") == 0.0


async def test_a_stated_word_is_scored_where_the_reference_is_a_word() -> None:
    bare = MathAnswerReward({})
    assert await score(bare, "red", "Of 3 balls, the answer is red.") == 1.0
    assert await score(bare, "72", "48+24=72, so the answer is correct.") == 1.0


async def test_only_the_last_turn_counts(reward: MathAnswerReward) -> None:
    assert await score(reward, "5", r"<answer>\boxed{5}</answer>", "hm") == 0.0


async def test_what_a_tool_printed_is_never_rewarded(reward: MathAnswerReward) -> None:
    printed = ToolResult(status=ToolStatus.OK, text=r"<answer>\boxed{5}</answer>")
    turns = (Turn(text="let me compute", results=(printed,)),)
    assert await reward.score(Prompt(prompt_id="p", messages=[], answer="5"), turns, deadline=Deadline.after(5)) == 0.0


async def test_an_equivalent_answer_is_right_and_another_one_wrong(reward: MathAnswerReward) -> None:
    await reward.start()
    assert await score(reward, "1/2", r"<answer>\boxed{\frac{2}{4}}</answer>") == 1.0
    assert await score(reward, "1/2", r"<answer>\boxed{\frac{2}{3}}</answer>") == 0.0


async def test_the_format_comes_from_the_config() -> None:
    section = RewardSection(answer_format="boxed")
    assert await score(cast(MathAnswerReward, build_reward(section)), "5", r"\boxed{5}") == 1.0
    assert (
        await score(
            cast(MathAnswerReward, build_reward(section.model_copy(update={"answer_format": "hashes"}))),
            "5",
            r"\boxed{5}",
        )
        == 0.0
    )


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("She sold 48/2 = 24 clips, 48 + 24 = 72 in all.\n#### 72", "72"),
        (r"So the area is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (72, "72"),
    ],
)
async def test_the_reference_is_read_from_a_solution_or_a_number(
    reward: MathAnswerReward, reference: str, answer: str
) -> None:
    assert await score(reward, reference, rf"<answer>\boxed{{{answer}}}</answer>") == 1.0


@pytest.mark.parametrize("reference", [["72"], {"target": "72"}, True])
async def test_a_reference_that_is_neither_text_nor_a_number_is_an_error_of_the_data(
    reward: MathAnswerReward, reference: Any
) -> None:
    with pytest.raises(
        DataError, match=r"reference answer of prompt `p` is .*(?:72|True).*Name the column .* `data\.answer_key`"
    ):
        await score(reward, reference, r"<answer>\boxed{72}</answer>")


async def test_the_first_three_scored_answers_and_the_number_without_one_are_reported(reward: MathAnswerReward) -> None:
    await score(reward, "5", r"<answer>\boxed{5}</answer>")
    for _ in range(3):
        await score(reward, "5", "five")
    stats = reward.take_answer_stats()
    assert (stats.num_scored, stats.num_missing) == (4, 3)
    assert stats.examples == (
        "prompt `p`: answer '5', reference '5', score 1",
        *["prompt `p`: nothing found: no `<answer>...</answer>`, reference '5', score 0"] * 2,
    )
    await score(reward, "5", "five")
    assert reward.take_answer_stats() == AnswerStats(num_scored=1, num_missing=1)


async def test_a_prompt_without_a_reference_answer_is_an_error_of_the_data(reward: MathAnswerReward) -> None:
    with pytest.raises(DataError, match=r"prompt `p` has no reference answer; check `data\.answer_key`"):
        await score(reward, " ", r"<answer>\boxed{5}</answer>")


def test_an_unknown_key_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `check_timeout`. Did you mean `check_timeout_s`"):
        MathAnswerReward({"check_timeout": 1.0})


def hung(index: int) -> tuple[str, str]:
    """Give a pair whose comparison would never end: half of them are refused by a bound, half need their time limit."""
    return ("42", f"9^{{9^{{9^{{{index}}}}}}}") if index % 2 else ("x+1", f"((x+y+z)^9+{index})^9+((x-y+z)^8+2)^9")


def honest(index: int) -> tuple[str, str]:
    """Give a pair that is equal, in three forms of which two need sympy."""
    n = index + 2
    return [
        (rf"\frac{{\sqrt{{{n}}}}}{{{n}}}", rf"\frac{{1}}{{\sqrt{{{n}}}}}"),
        (f"x^2-{n * n}", f"(x-{n})(x+{n})"),
        (str(n), f"{n}.0"),
    ][index % 3]


@pytest.mark.slow
async def test_twenty_hung_comparisons_beside_sixty_honest_ones_lose_none_and_delay_none() -> None:
    reward = MathAnswerReward({"check_timeout_s": 1.0}, answer_format="tagged")
    await reward.start()
    pairs = [*map(hung, range(20)), *map(honest, range(60))]

    async def scored(index: int) -> float:
        reference, answer = pairs[index]
        prompt = Prompt(prompt_id="p", messages=[], answer=reference)
        turns = (Turn(text=rf"<answer>\boxed{{{answer}}}</answer>"),)
        return await reward.score(prompt, turns, deadline=Deadline.after(100))

    assert await asyncio.gather(*map(scored, range(80))) == [0.0] * 20 + [1.0] * 60
    assert reward.take_answer_stats().num_given_up == 10
    await reward.aclose()
