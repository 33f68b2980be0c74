from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.schema.reward import RewardPartSection, RewardSection
from agentrl.errors import ConfigError, UnexplainedError
from agentrl.rewards.code_tests import CODE_TESTS_REWARD
from agentrl.rewards.loader import build_reward
from agentrl.rewards.score import Score, read_score
from agentrl.run.judges import needs_judge
from agentrl.types import Deadline, Prompt, Turn

PROMPT = Prompt(prompt_id="p", messages=[], answer="42")
TURNS = (Turn(text="It is 42"),)


def accuracy(prompt: Prompt, turns: tuple[Turn, ...]) -> dict[str, Any]:
    return {"score": str(prompt.answer) in turns[-1].text, "position": turns[-1].text.find(str(prompt.answer))}


def penalty(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    return -float(len(turns[-1].text))


def only_for_code(prompt: Prompt, turns: tuple[Turn, ...]) -> None:
    return None


def failing(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    raise KeyError("gold")


def part(name: str, weight: float = 1.0) -> RewardPartSection:
    return RewardPartSection(name=name, function=f"{__name__}.{name}", weight=weight)


async def scored(*parts: RewardPartSection) -> Score:
    reward = build_reward(RewardSection(parts=list(parts)))
    await reward.start()
    try:
        return read_score(await reward.score(PROMPT, TURNS, deadline=Deadline.after(60)), where="reward")
    finally:
        await reward.aclose()


async def test_the_reward_is_the_weighted_sum_and_every_score_a_metric():
    score = await scored(part("accuracy"), part("penalty", 0.01), part("only_for_code"))
    assert score.value == pytest.approx(1 - 0.08)
    assert score.metrics == {"accuracy": 1.0, "accuracy/position": 6.0, "penalty": -8.0}


async def test_a_part_that_fails_is_named():
    with pytest.raises(
        UnexplainedError, match="reward part `failing` of prompt `p` raised KeyError at test_weighted_parts"
    ):
        await scored(part("accuracy"), part("failing"))


async def test_where_no_part_applies_there_is_no_reward():
    with pytest.raises(UnexplainedError, match="prompt `p`: every part is None"):
        await scored(part("only_for_code"))


def test_a_part_may_ask_for_the_runs_judge():
    parts = [part("accuracy"), RewardPartSection(name="tests", class_name=CODE_TESTS_REWARD)]
    assert needs_judge([], RewardSection(parts=parts))
    assert not needs_judge([], RewardSection(parts=parts[:1]))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("{parts: [{name: a, class_name: m.A}, {name: a, function: m.b}]}", "`reward.parts` has 2 parts named `a`"),
        ("{parts: [{name: a}]}", "`reward.parts[0]` must have either `class_name` or `function`"),
        ("{parts: [{name: score, function: m.f}]}", "`reward.parts[0].name` is 'score'"),
        ("{parts: [{name: a, function: m.f, weight: 0}]}", "have the weight 0 throughout"),
        ("{parts: [{name: a, function: m.f}], function: m.g}", "`reward.function` is set beside `reward.parts`"),
        (
            "{parts: [{name: a, function: m.f}]}\nalgorithm: {selection: {metric: acc}}",
            "`algorithm.selection.metric` is `acc`, and `reward.parts` give `a`",
        ),
        ("{class_name: m.A, function: m.f}", "`reward.class_name` and `reward.function` (m.f) are both set"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(reward: str, message: str, tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(f"data: {{train_files: [a.jsonl]}}\nmodel: {{path: m}}\nreward: {reward}\n")
    with pytest.raises(ConfigError) as caught:
        load_run_config(str(file))
    assert message in str(caught.value)
