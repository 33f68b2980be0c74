"""Facts about trajectories that no model has made."""

from typing import Any

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.types import Termination, TrajectorySummary

SELECTION = SelectionSection()
"""The reward itself is the outcome, and 1 means solved."""


def short_summary(
    prompt_id: str = "p", sample_index: int = 0, *, reward: float | None = 1.0, **others: Any
) -> TrajectorySummary:
    """Return what is known of a trajectory that answered in one turn, or that failed where it has no reward.

    Args:
        prompt_id: what it answers.
        sample_index: its number among those of the prompt.
        reward: None where it failed.
        others: what else differs.
    """
    facts: dict[str, Any] = {
        "trajectory_id": f"1-{prompt_id}-{sample_index}",
        "termination": Termination.INFRA_ERROR if reward is None else Termination.ANSWERED,
        "num_tokens": 10,
        "num_response_tokens": 5,
        "num_turns": 1,
        "num_tool_calls": 0,
        "num_failed_tool_calls": 0,
        "num_answer_tags": 1,
        "num_retries": 0,
        "wall_time_s": 0.1,
        "policy_version": 0,
    }
    return TrajectorySummary(prompt_id=prompt_id, sample_index=sample_index, reward=reward, **(facts | others))
