import pytest

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.errors import ConfigError
from agentrl.observability.reports.outcome import is_solved, outcome
from agentrl.observability.rollout_metrics import reward_breakdown, summarise, summarise_validation
from agentrl.types import Termination
from tests.summaries import short_summary

ACCURACY = SelectionSection(metric="accuracy")
SHAPED = short_summary(reward=0.2, reward_metrics={"accuracy": 1.0, "format": 0.5})


def test_solved_is_a_number_of_the_users_scale():
    below, at = short_summary(reward=-1.0), short_summary(reward=0.0)
    selection = SelectionSection(solved_at=0.0)
    assert not is_solved(below, selection)
    assert is_solved(at, selection)
    assert not is_solved(at, SelectionSection())


def test_a_metric_of_the_breakdown_stands_for_the_shaped_reward():
    assert outcome(SHAPED, ACCURACY) == 1.0
    assert summarise_validation([SHAPED], ACCURACY)["validation/accuracy"] == 1.0
    assert summarise_validation([SHAPED], ACCURACY)["validation/reward_mean"] == 0.2
    assert summarise([SHAPED], ACCURACY)["rollout/solved_rate"] == 1.0


def test_a_trajectory_that_the_reward_was_not_asked_about_has_0():
    assert outcome(short_summary(reward=0.0, termination=Termination.MAX_TURNS), ACCURACY) == 0.0


def test_a_metric_that_the_reward_does_not_give_is_refused_with_what_it_gives():
    with pytest.raises(ConfigError, match=r"`accuracy`, which the reward of prompt `p` .* \(its metrics: `acc`\)"):
        outcome(short_summary(reward_metrics={"acc": 1.0}), ACCURACY)


def test_a_trajectory_without_a_tool_reward_has_the_sum_zero():
    by_tools = SelectionSection(metric="tool_reward")
    assert outcome(short_summary(reward_metrics={}), by_tools) == 0.0
    assert outcome(short_summary(reward_metrics={"accuracy": 1.0}), by_tools) == 0.0
    assert outcome(short_summary(reward_metrics={"tool_reward": 0.5}), by_tools) == 0.5
    assert outcome(short_summary(reward=None), by_tools) is None


def test_the_mean_of_a_metric_is_over_the_trajectories_that_have_it():
    summaries = [SHAPED, short_summary(reward_metrics={"accuracy": 0.0}), short_summary()]
    assert reward_breakdown("reward", summaries) == {"reward/accuracy": 0.5, "reward/format": 0.5}
    assert summarise(summaries, SelectionSection())["reward/accuracy"] == 0.5
    assert summarise_validation(summaries, SelectionSection())["validation/reward/accuracy"] == 0.5
