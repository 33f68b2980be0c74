import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from agentrl.agent_loop import scoring
from agentrl.agent_loop.scoring import score, with_final_rewards
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError, DataError, RolloutError, UnexplainedError
from agentrl.rewards.loader import build_reward
from agentrl.rewards.tool_rewards import tool_reward
from agentrl.types import Deadline, Prompt, ToolCall, ToolResult, ToolStatus, Turn

PROMPT = Prompt(prompt_id="p0", messages=[])


class Scripted:
    """A reward whose `score` is the function it is given."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.answer = answer

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        return await self.answer()

    async def aclose(self) -> None: ...


async def ask(
    answer: Callable[[], Awaitable[Any]],
    *,
    timeout_s: float = 60.0,
    score_unfinished: Literal["zero", "score", "mask"] = "zero",
) -> float:
    section = RewardSection(class_name="my.Reward", timeout_s=timeout_s, score_unfinished=score_unfinished)
    return (await score(Scripted(answer), section, PROMPT, ())).value


def giving(value: Any) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return answer


def test_what_a_tool_gives_for_the_episode_is_added_to_its_last_result():
    def turn(*names: str) -> Turn:
        calls = tuple(ToolCall(call_id=name, name=name) for name in names)
        return Turn(
            text="", calls=calls, results=tuple(ToolResult(status=ToolStatus.OK, text="", reward=0.5) for _ in names)
        )

    turns = with_final_rewards((turn("a", "b"), turn("a"), Turn(text="done")), {"a": 1.0, "b": -1.0, "unused": 2.0})
    assert [[result.reward for result in turn.results] for turn in turns] == [[0.5, -0.5], [1.5], []]
    assert turns[-1].final_tool_reward == 2.0
    assert tool_reward(PROMPT, turns) == 3.5


def test_a_final_reward_of_a_tool_that_was_never_called_reaches_the_reward():
    turns = with_final_rewards((Turn(text="done"),), {"search": -1.0})
    assert tool_reward(PROMPT, turns) == -1.0
    assert with_final_rewards((Turn(text="done"),), {}) == (Turn(text="done"),)


async def test_step_rewards_of_tools_are_a_metric_and_count_where_the_config_asks_for_it():
    result = ToolResult(status=ToolStatus.OK, text="", reward=0.5)
    turns = (Turn(text="", calls=(ToolCall(call_id="0", name="a"),) * 2, results=(result, result)), Turn(text="done"))
    ignored = await score(Scripted(giving(0.0)), RewardSection(), PROMPT, turns)
    assert (ignored.value, ignored.metrics) == (0.0, {"tool_reward": 1.0})
    section = RewardSection(function="agentrl.rewards.tool_rewards.tool_reward")
    assert (await score(build_reward(section), section, PROMPT, turns)).value == 1.0


@pytest.mark.parametrize("value", [1, 0.5, True, 0])
async def test_a_number_is_the_reward(value: Any):
    assert await ask(giving(value)) == float(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "right", [1.0]])
async def test_what_is_no_finite_number_is_the_datas_fault_and_names_the_prompt(value: Any):
    with pytest.raises(
        UnexplainedError, match=r"reward `my\.Reward` of prompt `p0` is .*, and must be a finite number"
    ):
        await ask(giving(value))


async def test_a_negative_reward_is_refused_where_a_trajectory_cut_short_would_beat_it():
    with pytest.raises(
        ConfigError, match=r"`my\.Reward` of prompt `p0`: -1 is below the 0 .* `reward\.score_unfinished: score`"
    ):
        await ask(giving(-1))


@pytest.mark.parametrize("score_unfinished", ["score", "mask"])
async def test_a_negative_reward_is_a_number_like_any_other_where_none_beats_it(
    score_unfinished: Literal["score", "mask"],
):
    assert await ask(giving(-1), score_unfinished=score_unfinished) == -1.0


async def test_an_exception_that_nobody_expected_is_the_datas_fault():
    with pytest.raises(
        UnexplainedError, match=r"reward `my\.Reward` of prompt `p0` raised KeyError at test_reward_scoring\.py:.*tests"
    ) as caught:
        await ask(giving(KeyError("tests")))
    assert isinstance(caught.value.__cause__, KeyError)


class WordlessError(Exception):
    """An error whose text cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_exception_whose_text_raises_is_named_with_its_class_line_and_prompt():
    match = r"`my\.Reward` of prompt `p0` raised WordlessError at test_reward_scoring\.py:\d+: its text cannot be shown"
    with pytest.raises(UnexplainedError, match=match):
        await ask(giving(WordlessError()))


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError("late"), OSError("no space")])
async def test_what_the_system_refuses_is_the_worlds_fault(error: OSError):
    with pytest.raises(RolloutError, match=f"reward `my.Reward` of prompt `p0`: {type(error).__name__}: {error}"):
        await ask(giving(error))


@pytest.mark.parametrize("error", [RolloutError("down"), DataError("no answer"), ConfigError("wrong")])
async def test_a_reward_that_explains_itself_is_believed(error: Exception):
    with pytest.raises(type(error)) as caught:
        await ask(giving(error))
    assert caught.value is error


async def test_a_reward_that_ignores_its_cancellation_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring, "_GRACE_S", 0.01)
    released = asyncio.Event()

    async def stubborn() -> float:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    async with asyncio.timeout(60):
        with pytest.raises(RolloutError, match=r"no answer in 0\.05 s"):
            await ask(stubborn, timeout_s=0.05)
    released.set()
    await asyncio.sleep(0)
