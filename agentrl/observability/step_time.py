"""Analysis of a step's time: the split of its trajectories, and advice.

Everything here is computed from the summaries once a step is over. The *places* of a step are the most trajectories that ran at
once; its *place time* is their number times its length. An engine is idle while its places hold no request: their trajectories
wait for something else, or they are empty.

In a run that rolls out ahead (`overlaps`) the engines go on during updates, and the trajectories of a batch also ran in earlier
steps. There the place time is the time for which they held their places, and the advice also depends on the actor's waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from agentrl.timing import TIME_PARTS
from agentrl.types import Group, TrajectoryRef, TrajectorySummary

_BUSY_BELOW = 0.15
"""Share of idle place time below which the engines are the bottleneck, and of waiting below which the actor is."""

_ROUNDING_S = 1e-6
"""Tolerance for a place that seems to be taken before it was left."""

_WAYS_OUT = {
    "judge_queue": "the judge's queue is the bottleneck; add judge workers (`judge.num_slots`, or more hosts)",
    "tool": "the tools are the bottleneck; make them faster, or raise `rollout.max_concurrent_trajectories`",
    "agent": "the agent is the bottleneck; make it faster, or raise `rollout.max_concurrent_trajectories`",
    "tokenise": "tokenising is the bottleneck; raise `rollout.num_workers`",
    "dispatch": "the way to the agent-loop workers is the bottleneck; raise `rollout.num_workers`",
    "retry": "episodes that fail are the bottleneck; the warnings of this step say why",
    "reward": "the reward is the bottleneck; make it faster",
    "empty": "the last trajectories are the bottleneck; lower `rollout.max_response_tokens` or `rollout.max_turns`",
    "update": "the update is the bottleneck; raise `actor.num_workers` where GPUs or cores are free",
    "weight_sync": "the weight sync is the bottleneck",
}
"""Advice, keyed by the largest share of idle place time."""
_QUEUED = "requests wait in the engines; raise `rollout.num_engines`, or lower `rollout.max_concurrent_trajectories`"
_BUSY = "sampling is the bottleneck; raise `rollout.num_engines` where GPUs or cores are free"


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


def num_places(summaries: Sequence[TrajectorySummary]) -> int:
    """Return the most trajectories that ran at once."""
    starts = [(summary.finished_at - summary.times.held_s + _ROUNDING_S, 1) for summary in summaries]
    ends = [(summary.finished_at, -1) for summary in summaries]
    most = running = 0
    for _, change in sorted(starts + ends):
        running += change
        most = max(most, running)
    return most


def place_shares(summaries: Sequence[TrajectorySummary], step: StepTime, *, overlaps: bool) -> dict[str, float]:
    """Return the shares of a step's place time, which add up to 1.

    They are the parts of the split that hold a place, with both judge queues as one. Unless rollouts overlap with updates, also
    `empty` (a place without a trajectory while others run), `update` and `weight_sync`, when all places are idle.
    """
    held = [name for name in TIME_PARTS if name not in ("admission_wait_s", "tail_wait_s")]
    seconds: dict[str, float] = {
        name.removesuffix("_s"): sum(getattr(summary.times, name) for summary in summaries) for name in held
    }
    seconds["judge_queue"] += seconds.pop("reward_queue")  # the same judge
    if not overlaps:
        places = num_places(summaries)
        seconds["empty"] = places * step.rollout_s - sum(seconds.values())
        seconds["update"], seconds["weight_sync"] = places * step.update_s, places * step.weight_sync_s
    total_s = sum(seconds.values())
    return {name: spent_s / total_s for name, spent_s in seconds.items()} if total_s else {}


def advice(shares: dict[str, float]) -> str:
    """Return a line of advice about the largest part of a step's time."""
    if not shares:
        return "no trajectory was made"
    idle = {name: share for name, share in shares.items() if name in _WAYS_OUT}
    idle_share = sum(idle.values())
    if idle_share < _BUSY_BELOW:
        return f"engines busy {1 - idle_share:.0%}: {_QUEUED if shares['engine_queue'] > shares['generate'] else _BUSY}"
    return f"engines idle {idle_share:.0%}: {_WAYS_OUT[max(idle, key=idle.__getitem__)]}"


def advice_ahead(shares: dict[str, float], step: StepTime) -> str:
    """Return the advice for a run that rolls out ahead: if the actor hardly waits, only the actor's own time matters."""
    waits = step.rollout_s / step.total_s if step.total_s else 0.0
    if waits < _BUSY_BELOW:
        slower = "update" if step.update_s >= step.weight_sync_s else "weight_sync"
        return f"actor waits {waits:.0%}: {_WAYS_OUT[slower]}"
    return f"actor waits {waits:.0%}, {advice(shares)}"


def describe_step(
    number: int, summaries: Sequence[TrajectorySummary], step: StepTime, *, overlaps: bool, has_agent: bool
) -> str:
    """Return the log line of a step: its length, the largest shares of its place time, and the advice.

    With `has_agent` the time between the policy's turns is the agent's, which runs its own tools.
    """
    shares = place_shares(summaries, step, overlaps=overlaps)
    if has_agent and shares:
        shares["agent"] = shares.pop("tool")
    largest = sorted(shares.items(), key=lambda item: -item[1])[:4]
    shown = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in largest)
    line = advice_ahead(shares, step) if overlaps else advice(shares)
    return f"step {number:>4}  {'; '.join(filter(None, [f'{step.total_s:.1f} s', shown, line]))}"
