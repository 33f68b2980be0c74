import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrl.agent_loop import scoring
from agentrl.agent_loop.scoring import score
from agentrl.config.schema import RewardSection
from agentrl.errors import ConfigError, DataError, RolloutError, UnexplainedError
from agentrl.types import Deadline, Prompt, Turn

PROMPT = Prompt(prompt_id="p0", messages=[])


class Scripted:
    """A reward whose `score` is the function it is given."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self.answer = answer

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        return await self.answer()

    async def aclose(self) -> None: ...


async def ask(answer: Callable[[], Awaitable[Any]], *, timeout_s: float = 60.0) -> float:
    return await score(Scripted(answer), RewardSection(class_name="my.Reward", timeout_s=timeout_s), PROMPT, ())


def giving(value: Any) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return answer


@pytest.mark.parametrize("value", [1, 0.5, True, 0])
async def test_a_number_is_the_reward(value: Any):
    assert await ask(giving(value)) == float(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "right", [1.0]])
async def test_what_is_no_finite_number_is_the_datas_fault_and_names_the_prompt(value: Any):
    with pytest.raises(UnexplainedError, match=r"reward of prompt `p0` is .*, and must be a finite number"):
        await ask(giving(value))


async def test_a_negative_reward_is_a_mistake_of_its_class_as_a_whole():
    with pytest.raises(ConfigError, match=r"`my\.Reward` gave -1 for `p0`"):
        await ask(giving(-1))


async def test_an_exception_that_nobody_expected_is_the_datas_fault():
    with pytest.raises(
        UnexplainedError, match=r"reward of prompt `p0` raised KeyError at test_reward_scoring\.py:.*tests"
    ) as caught:
        await ask(giving(KeyError("tests")))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [ConnectionError("refused"), TimeoutError("late"), OSError("no space")])
async def test_what_the_system_refuses_is_the_worlds_fault(error: OSError):
    with pytest.raises(RolloutError, match=f"reward of prompt `p0`: {type(error).__name__}: {error}"):
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
