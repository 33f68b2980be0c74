"""Rewards of an environment: their sum, and what other rewards see of its answers."""

from agentrl.config.schema.reward import RewardPartSection, RewardSection
from agentrl.config.validation.reward import reward_problems
from agentrl.rewards.environment_reward import environment_reward, given_by_environment
from agentrl.rewards.function_reward import FunctionReward
from agentrl.types import Deadline, Prompt, Turn

PROMPT = Prompt(prompt_id="p", messages=[{"role": "user", "content": "Guess."}], answer="7")
TURNS = (
    Turn(text="5", observation="higher", environment_reward=-0.25),
    Turn(text="6", observation="higher"),
    Turn(text="7", observation="right", environment_reward=1.0),
)


def show(prompts: list[object], completions: list[list[dict[str, str]]]) -> list[float]:
    [messages] = completions
    shown = [(message["role"], message["content"]) for message in messages]
    assert shown[:3] == [("assistant", "5"), ("user", "higher"), ("assistant", "6")]
    return [1.0]


def test_the_environments_rewards_are_summed_over_the_turns():
    assert environment_reward(PROMPT, TURNS) == 0.75
    assert given_by_environment(TURNS) == [-0.25, 1.0]
    assert environment_reward(PROMPT, ()) == 0


async def test_a_reward_of_trl_reads_observations_as_messages_of_the_user():
    reward = FunctionReward(f"{__name__}.show", {}, key="reward.function")
    assert await reward.score(PROMPT, TURNS, deadline=Deadline.after(10)) == 1.0
    await reward.aclose()


def test_selection_may_name_the_sum_beside_parts():
    section = RewardSection(parts=[RewardPartSection(name="brief", function="my_rewards.brief")])
    assert list(reward_problems(section, "environment_reward")) == []
    assert list(reward_problems(section, "environment"))
