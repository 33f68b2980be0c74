from agentrl.config.schema.algorithm import SelectionSection
from agentrl.config.schema.reward import RewardSection
from agentrl.observability.reports.reward import reward_warnings
from agentrl.types import Termination, TrajectorySummary
from tests.summaries import SELECTION, short_summary

REWARD = RewardSection(function="my_rewards.exact")


def batch(*rewards: float) -> list[TrajectorySummary]:
    return [short_summary(f"p{index % 4}", index, reward=reward) for index, reward in enumerate(rewards)]


def test_a_constant_reward_is_warned_of_by_name_also_where_some_are_cut_short():
    cut = short_summary("p9", reward=0.0, termination=Termination.MAX_TURNS)
    [line] = reward_warnings([*batch(*[-1.0] * 8), cut], REWARD, SELECTION)
    assert line.startswith("`my_rewards.exact` gave -1 for all 8 trajectories that it was asked about, of 4 prompts")


def test_a_scale_on_which_nothing_is_solved_is_warned_of():
    [line] = reward_warnings(batch(*[0.5, 0.9] * 4), REWARD, SELECTION)
    assert "`algorithm.selection.solved_at` is 1, and the best reward of 8 trajectories is 0.9" in line
    assert reward_warnings(batch(*[0.5, 0.9] * 4), REWARD, SelectionSection(solved_at=0.9)) == []


def test_a_policy_that_never_ends_a_turn_is_warned_of():
    cut = [short_summary(f"p{n}", reward=0.0, termination=Termination.MAX_RESPONSE_TOKENS) for n in range(8)]
    assert "was never asked: all 8 trajectories were cut short" in reward_warnings(cut, REWARD, SELECTION)[0]


def test_rewards_of_both_kinds_and_batches_that_are_too_small_are_not_warned_of():
    assert reward_warnings(batch(*[0.0, 1.0] * 4), REWARD, SELECTION) == []
    assert reward_warnings(batch(0.0, 0.0), REWARD, SELECTION) == []
