import pytest

from agentrl.simulation.reward import SimulatedReward
from agentrl.types import Deadline, Prompt, Turn


async def test_the_share_that_is_right_is_that_of_the_config_and_stays_the_same():
    reward = SimulatedReward({"accuracy": 0.3})
    prompt = Prompt(prompt_id="p", messages=[])

    async def score(number: int) -> float:
        return await reward.score(prompt, (Turn(text=f"{number}"),), deadline=Deadline.after(1))

    scores = [await score(number) for number in range(2000)]
    assert sum(scores) / 2000 == pytest.approx(0.3, abs=0.04)
    assert scores == [await score(number) for number in range(2000)]
