"""Outcome of a trajectory: the number behind selection, pass rates, pass@k and accuracy, and the test for solved."""

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.errors import ConfigError
from agentrl.types import ENVIRONMENT_REWARD_METRIC, TOOL_REWARD_METRIC, Termination, TrajectorySummary


def outcome(summary: TrajectorySummary, selection: SelectionSection) -> float | None:
    """Return the reward, or its metric `selection.metric`; None for a trajectory without a reward.

    The outcome is 0 for an unfinished trajectory that was not scored, and for the sum of the rewards of tools or of the
    environment if none was given.

    Raises:
        ConfigError: the reward has no such metric.
    """
    if summary.reward is None or selection.metric is None:
        return summary.reward
    value = summary.reward_metrics.get(selection.metric)
    if value is not None:
        return value
    if selection.metric in (TOOL_REWARD_METRIC, ENVIRONMENT_REWARD_METRIC):
        return 0.0
    if summary.termination is not Termination.ANSWERED and not summary.reward_metrics:
        return 0.0
    names = ", ".join(f"`{name}`" for name in summary.reward_metrics) or "none"
    raise ConfigError(
        f"`algorithm.selection.metric` is `{selection.metric}`, which the reward of prompt `{summary.prompt_id}` lacks (its "
        f"metrics: {names}). Return that metric every time, or name another"
    )


def is_solved(summary: TrajectorySummary, selection: SelectionSection) -> bool:
    """Return whether a trajectory's outcome is at least `selection.solved_at`."""
    value = outcome(summary, selection)
    return value is not None and value >= selection.solved_at
