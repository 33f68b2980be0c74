"""Times of a step, and the split of its trajectories' times."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from agentrl.timing import TIME_PARTS
from agentrl.types import Group, TrajectoryRef, TrajectorySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The stages of one step, in seconds."""

    rollout_s: float
    update_s: float
    weight_sync_s: float

    @property
    def total_s(self) -> float:
        """Length of the step."""
        return self.rollout_s + self.update_s + self.weight_sync_s

    def metrics(self) -> dict[str, float]:
        """Return the `time/..._s` metrics."""
        return {f"time/{part.name}": getattr(self, part.name) for part in fields(self)} | {"time/step_s": self.total_s}


def end_together(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of one batch with `tail_wait_s` filled in: each trajectory's wait for the last one."""
    end = max((trajectory.summary.finished_at for group in groups for trajectory in group.trajectories), default=0.0)

    def with_tail_wait(trajectory: TrajectoryRef) -> TrajectoryRef:
        summary = trajectory.summary
        times = replace(summary.times, tail_wait_s=end - summary.finished_at)
        return replace(trajectory, summary=replace(summary, times=times))

    return [replace(group, trajectories=list(map(with_tail_wait, group.trajectories))) for group in groups]


def split_metrics(summaries: Sequence[TrajectorySummary]) -> dict[str, float]:
    """Return `time/trajectory_<part>_s_mean` of every part of the split; they add up to the mean wall time."""
    count = max(1, len(summaries))
    sums = {name: sum(getattr(summary.times, name) for summary in summaries) for name in TIME_PARTS}
    return {f"time/trajectory_{name.removesuffix('_s')}_s_mean": sum_s / count for name, sum_s in sums.items()}
