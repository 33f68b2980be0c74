import pytest

from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.algorithm import SelectionSection
from agentrl.config.schema.reward import RewardSection
from agentrl.observability.reports.reward import reward_warnings
from agentrl.types import Termination, TrajectorySummary
from tests.summaries import SELECTION, short_summary

REWARD = RewardSection(function="my_rewards.exact")
NO_AGENT = AgentSection()


def batch(*rewards: float) -> list[TrajectorySummary]:
    return [short_summary(f"p{index % 4}", index, reward=reward) for index, reward in enumerate(rewards)]


def test_a_constant_reward_is_warned_of_by_name_also_where_some_are_cut_short():
    unfinished = short_summary("p9", reward=0.0, termination=Termination.MAX_TURNS)
    [line] = reward_warnings([*batch(*[-1.0] * 8), unfinished], REWARD, SELECTION, NO_AGENT)
    assert line.startswith("`my_rewards.exact` gave -1 for all 8 trajectories that it was asked about, of 4 prompts")


def test_a_scale_on_which_nothing_is_solved_is_warned_of():
    [line] = reward_warnings(batch(*[0.5, 0.9] * 4), REWARD, SELECTION, NO_AGENT)
    assert "`algorithm.selection.solved_at` is 1, and the best reward of 8 trajectories is 0.9" in line
    assert reward_warnings(batch(*[0.5, 0.9] * 4), REWARD, SelectionSection(solved_at=0.9), NO_AGENT) == []


def cut(*limits: Termination) -> list[TrajectorySummary]:
    return [short_summary(f"p{n}", reward=0.0, termination=limit) for n, limit in enumerate(limits)]


def test_trajectories_that_are_all_cut_short_are_warned_of_by_the_limits_that_they_reached():
    [line] = reward_warnings(cut(*[Termination.MAX_RESPONSE_TOKENS] * 8), REWARD, SELECTION, NO_AGENT)
    assert "was never asked: all 8 trajectories were cut short (max_response_tokens 8)." in line
    assert line.endswith("Raise `rollout.max_response_tokens`, or see in `trajectories/` why the policy does not stop")
    mixed = [Termination.MAX_TURNS] * 3 + [Termination.TIMEOUT] * 6
    [line] = reward_warnings(cut(*mixed), REWARD, SELECTION, NO_AGENT)
    assert "(timeout 6, max_turns 3). Raise `rollout.trajectory_timeout_s` or `rollout.turn_timeout_s` or" in line
    assert "max_response_tokens" not in line


@pytest.mark.parametrize(
    ("agent", "label"),
    [
        (AgentSection(callable="my_agent.solve"), "my_agent.solve"),
        (AgentSection(command=["python", "a.py"]), "python a.py"),
    ],
    ids=["callable", "command"],
)
def test_an_agent_that_reaches_its_time_is_named_with_the_key_of_its_time(agent: AgentSection, label: str):
    [line] = reward_warnings(cut(*[Termination.TIMEOUT] * 8), REWARD, SELECTION, agent)
    assert "all 8 trajectories were cut short (timeout 8). Raise `rollout.trajectory_timeout_s`" in line
    assert line.endswith(f"see in `trajectories/` why the agent `{label}` does not stop")
    assert "max_turns" not in line


def test_rewards_of_both_kinds_and_batches_that_are_too_small_are_not_warned_of():
    assert reward_warnings(batch(*[0.0, 1.0] * 4), REWARD, SELECTION, NO_AGENT) == []
    assert reward_warnings(batch(0.0, 0.0), REWARD, SELECTION, NO_AGENT) == []
