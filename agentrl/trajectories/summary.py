"""Summary of a trajectory: the facts that the driver, evaluations and reports work with, without its tokens."""

from agentrl.observability.reports.tools import tally_calls
from agentrl.types import ToolStatus, Trajectory, TrajectorySummary


def summarise_trajectory(trajectory: Trajectory) -> TrajectorySummary:
    """Return the summary that the driver works with."""
    results = trajectory.tool_results
    num_calls = sum(len(turn.calls) for turn in trajectory.turns)
    versions = [version for _, version in trajectory.version_spans]
    return TrajectorySummary(
        trajectory_id=trajectory.trajectory_id,
        prompt_id=trajectory.prompt_id,
        sample_index=trajectory.sample_index,
        reward=trajectory.reward,
        reward_metrics=trajectory.reward_metrics,
        is_masked=trajectory.is_masked,
        termination=trajectory.termination,
        num_tokens=len(trajectory.token_ids),
        num_prompt_tokens=0 if trajectory.row_starts else trajectory.num_prompt_tokens,
        num_response_tokens=trajectory.num_response_tokens,
        num_turns=len(trajectory.turns),
        num_tool_calls=num_calls,
        # A call that the turn limit left unanswered did not succeed either.
        num_failed_tool_calls=num_calls - sum(result.status is ToolStatus.OK for result in results),
        num_cut_tool_results=sum(result.truncated for result in results),
        tools=tally_calls(trajectory.turns),
        num_answer_tags=sum(turn.text.count("<answer>") for turn in trajectory.turns),
        num_retries=trajectory.num_retries,
        wall_time_s=trajectory.wall_time_s,
        policy_version=min(versions, default=0),
        tool_time_s=sum(result.wall_time_s for result in results),
        failures=trajectory.failures,
        times=trajectory.times,
    )
