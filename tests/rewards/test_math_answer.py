from collections.abc import AsyncIterator

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.rewards.math_answer import MathAnswerReward, final_answer
from agentrl.types import Deadline, Prompt, ToolResult, ToolStatus, Turn


@pytest.fixture
async def reward() -> AsyncIterator[MathAnswerReward]:
    built = MathAnswerReward({})
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
        (r"<answer>5</answer>", ""),
        (r"<answer>\boxed{5}", ""),
        (r"\boxed{5}</answer>", ""),
        (r"\boxed{5} <answer>five</answer>", ""),
        (r"<answer>\boxed{5</answer>", ""),
        (r"</answer>\boxed{5}<answer>", ""),
        ("", ""),
    ],
)
def test_the_answer_is_the_last_box_of_the_last_answer_block(text: str, answer: str) -> None:
    assert final_answer(text, require_tag=True) == answer


def test_the_tag_may_be_waived() -> None:
    assert final_answer(r"so \boxed{5}", require_tag=False) == "5"


async def test_an_exact_answer_needs_no_process(reward: MathAnswerReward) -> None:
    assert await score(reward, "458", r"<answer>\boxed{458}</answer>") == 1.0
    assert not reward._pool._processes


async def test_no_answer_is_worth_nothing(reward: MathAnswerReward) -> None:
    assert await score(reward, "458", "I do not know") == 0.0
    assert await score(reward, "458") == 0.0


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


async def test_waiving_the_tag_is_a_key_of_the_config() -> None:
    assert await score(MathAnswerReward({"require_answer_tag": False}), "5", r"\boxed{5}") == 1.0


async def test_a_prompt_without_a_reference_answer_is_an_error_of_the_data(reward: MathAnswerReward) -> None:
    with pytest.raises(DataError, match=r"prompt `p` has no reference answer; check `data\.answer_key`"):
        await score(reward, " ", r"<answer>\boxed{5}</answer>")


def test_an_unknown_key_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `require_answer`. Did you mean `require_answer_tag`"):
        MathAnswerReward({"require_answer": True})
