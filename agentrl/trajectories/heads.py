"""Facts about a recorded trajectory that lists, filters and sums need, without its tokens and texts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Failure, Trajectory, TrajectorySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryHead:
    """Head of a trajectory's frame, and the columns of its row in the index."""

    trajectory_id: str
    prompt_id: str
    sample_index: int
    reward: float | None
    reward_metrics: Mapping[str, float]
    is_masked: bool
    termination: str
    failure_class: str
    """Class of the last failed attempt; empty without one."""
    failure_cause: str
    """Cause of that failure, else its message without the id of the prompt."""
    num_tokens: int
    num_response_tokens: int
    num_turns: int
    num_tool_calls: int
    num_failed_tool_calls: int
    """Calls without an OK result, those that the turn limit left unanswered included."""
    num_retries: int
    policy_version: int
    """Oldest version that sampled any of its tokens."""
    started_at: float
    """Unix seconds; 0 if no worker reported it."""
    wall_time_s: float
    generate_s: float
    engine_queue_s: float
    tool_s: float
    judge_queue_s: float
    reward_s: float


HEAD_FIELDS = tuple(field.name for field in fields(TrajectoryHead))
_OF_SUMMARY = tuple(field.name for field in fields(TrajectorySummary) if field.name in HEAD_FIELDS)


def head_of(trajectory: Trajectory) -> TrajectoryHead:
    """Return the facts of a finished trajectory."""
    summary, times = summarise_trajectory(trajectory), trajectory.times
    failure = trajectory.failures[-1] if trajectory.failures else None
    return TrajectoryHead(
        **{name: getattr(summary, name) for name in _OF_SUMMARY},
        failure_class=failure.failure_class if failure else "",
        failure_cause=_cause_of(failure, trajectory.prompt_id) if failure else "",
        started_at=trajectory.span.started_at if trajectory.span else 0.0,
        generate_s=times.generate_s,
        engine_queue_s=times.engine_queue_s,
        tool_s=times.tool_s,
        judge_queue_s=times.judge_queue_s,
        reward_s=times.reward_queue_s + times.reward_s,
    )


def _cause_of(failure: Failure, prompt_id: str) -> str:
    """Return what equal failures of all prompts have in common: a message names its prompt."""
    return failure.cause or failure.message.replace(f"`{prompt_id}`", "`...`")
