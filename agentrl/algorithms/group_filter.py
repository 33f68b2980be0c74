"""Selection of the groups and trajectories to train on: GRPO, and GRPO-RoC (arXiv:2508.20722, section 4).

A trajectory is positive if it is solved (`agentrl.observability.reports.outcome`). Runs on the driver, without torch.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agentrl.observability.reports.outcome import is_solved, outcome
from agentrl.types import Group, TrajectoryRef, TrajectorySummary

if TYPE_CHECKING:
    from agentrl.config.schema.algorithm import SelectionSection

_WEIGHT_OFFSET = 0.1
"""Offset that keeps the weight of a flawless trajectory finite."""


class Fate(StrEnum):
    """Use of a trajectory in its update, or the reason why it taught nothing."""

    TRAINED = "trained"
    NOT_DRAWN = "not_drawn"
    """Resample-on-Correct drew others of its group."""
    ALL_SOLVED = "all_solved"
    """Its group was dropped, because every trajectory is solved."""
    NONE_SOLVED = "none_solved"
    TOO_SMALL = "too_small"
    """Its group was dropped: it has no other to be compared with."""
    UNSCORED = "unscored"
    """No reward, because the infrastructure or the data failed."""
    MASKED = "masked"
    """Cut short, and `reward.score_unfinished` is `mask`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """Counts of what selection left out, by cause; metrics are `rollout/` and the field's name."""

    groups_dropped_all_solved: int = 0
    """Every trajectory is solved, so every advantage would be 0."""
    groups_dropped_none_solved: int = 0
    groups_dropped_too_small: int = 0
    """Nothing scored, or one trajectory of several, which has no other to be compared with."""
    groups_singleton: int = 0
    """Kept, with one trajectory, whose advantage is 0."""
    trajectories_dropped_unscored: int = 0
    """No reward, because the infrastructure or the data failed."""
    trajectories_dropped_masked: int = 0
    """Cut short, and `reward.score_unfinished` is `mask`."""
    trajectories_dropped_not_drawn: int = 0

    def __add__(self, other: "DropReport") -> "DropReport":
        """Return the sum of both reports, for a step that was refilled."""
        return DropReport(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    @property
    def groups_dropped(self) -> int:
        """Number of groups that are not trained on."""
        return self.groups_dropped_all_solved + self.groups_dropped_none_solved + self.groups_dropped_too_small

    def metrics(self) -> dict[str, float]:
        """Return the counts under their metric names."""
        return {f"rollout/{name}": float(getattr(self, name)) for name in self.__slots__}

    def describe_empty_batch(self) -> str:
        """Return the causes for which all groups were dropped: "8 of 8 too small, 64 trajectories unscored"."""
        groups = {
            "all solved": self.groups_dropped_all_solved,
            "none solved": self.groups_dropped_none_solved,
            "too small": self.groups_dropped_too_small,
        }
        trajectories = {"unscored": self.trajectories_dropped_unscored, "masked": self.trajectories_dropped_masked}
        lines = [f"{count} of {self.groups_dropped} {cause}" for cause, count in groups.items() if count]
        return ", ".join(lines + [f"{count} trajectories {cause}" for cause, count in trajectories.items() if count])


def select(groups: Sequence[Group], selection: "SelectionSection", *, seed: int) -> tuple[list[Group], DropReport]:
    """Return the groups to train on, in the order of `groups`, each with its trajectories by sample index.

    Leaves out unscored and masked trajectories, then groups that are too small, then (by default) groups of equal outcomes,
    and resamples the rest. The draws of a group depend only on `seed` and its prompt, not on the order of arrival.
    """
    kept: list[Group] = []
    report = DropReport()
    for group in groups:
        trajectories = sorted(group.trajectories, key=lambda trajectory: trajectory.summary.sample_index)
        scored = [trajectory for trajectory in trajectories if trajectory.summary.reward is not None]
        counted = _counted(scored)
        num_masked = len(scored) - len(counted)
        report += DropReport(
            trajectories_dropped_unscored=len(trajectories) - len(scored), trajectories_dropped_masked=num_masked
        )
        if (cause := _cause_to_drop(group, counted, selection)) is not None:
            report += DropReport(**{f"groups_dropped_{cause}": 1})
            continue
        drawn = counted
        if selection.method == "resample_on_correct":
            drawn = _resample_on_correct(counted, selection, random.Random(f"{seed}/{group.prompt_id}"))
        report += DropReport(
            groups_singleton=int(len(drawn) == 1), trajectories_dropped_not_drawn=len(counted) - len(drawn)
        )
        kept.append(Group(prompt_id=group.prompt_id, trajectories=drawn))
    return kept, report


def fates(groups: Sequence[Group], kept: Sequence[Group], selection: "SelectionSection") -> dict[str, list[str]]:
    """Return the ids of all trajectories of `groups` by their fate, where `select` returned the groups `kept`."""
    by_fate: dict[str, list[str]] = {}
    drawn = {trajectory.summary.trajectory_id for group in kept for trajectory in group.trajectories}
    of_kept_groups = {group.prompt_id for group in kept}
    for group in groups:
        is_kept = group.prompt_id in of_kept_groups
        of_rest = Fate.NOT_DRAWN if is_kept else _cause_to_drop(group, _counted(group.trajectories), selection)
        for summary in (trajectory.summary for trajectory in group.trajectories):
            if summary.trajectory_id in drawn:
                fate = Fate.TRAINED
            elif summary.reward is None:
                fate = Fate.UNSCORED
            else:
                fate = Fate.MASKED if summary.is_masked else of_rest
            assert fate is not None, "a group without a cause is kept"
            by_fate.setdefault(fate, []).append(summary.trajectory_id)
    return by_fate


def positive_quota(num_positives: int, num_negatives: int, selection: "SelectionSection") -> int:
    """Return the number of positives to keep; negatives fill up to `min(keep, all)`.

    The quota is proportional, halves rounded up, but keeps at least one of each class present and at least the configured
    minimum, if `keep` has room for both.
    """
    num_all = num_positives + num_negatives
    num_kept = min(selection.keep, num_all)
    quota = (2 * num_kept * num_positives + num_all) // (2 * num_all)
    lowest = min(num_positives, max(1, selection.min_positives))
    highest = num_kept - min(num_negatives, max(1, selection.min_negatives))
    if lowest <= highest:
        quota = min(max(quota, lowest), highest)
    return min(max(quota, num_kept - num_negatives), num_positives)


def quality_penalty(summary: TrajectorySummary) -> float:
    """Return `p_err + p_format` of a trajectory: 0 is flawless, 2 the worst.

    `p_err` is the share of its tool calls that failed (0.5 without a call); `p_format` is 1 without an answer tag, else
    the answer tags beyond the first per turn, at most 1.
    """
    error = summary.num_failed_tool_calls / summary.num_tool_calls if summary.num_tool_calls else 0.5
    if summary.num_answer_tags == 0:
        return error + 1.0
    return error + min(1.0, (summary.num_answer_tags - 1) / max(1, summary.num_turns))


def _counted(trajectories: Iterable[TrajectoryRef]) -> list[TrajectoryRef]:
    return [item for item in trajectories if item.summary.reward is not None and not item.summary.is_masked]


def _cause_to_drop(group: Group, counted: Sequence[TrajectoryRef], selection: "SelectionSection") -> Fate | None:
    if len(counted) < max(1, min(2, len(group.trajectories))):
        return Fate.TOO_SMALL
    outcomes = {outcome(trajectory.summary, selection) for trajectory in counted}
    if len(outcomes) > 1 or not selection.drop_equal_reward:
        return None
    return Fate.ALL_SOLVED if is_solved(counted[0].summary, selection) else Fate.NONE_SOLVED


def _resample_on_correct(
    counted: Sequence[TrajectoryRef], selection: "SelectionSection", draws: random.Random
) -> list[TrajectoryRef]:
    positives = [trajectory for trajectory in counted if is_solved(trajectory.summary, selection)]
    negatives = [trajectory for trajectory in counted if not is_solved(trajectory.summary, selection)]
    num_positives = positive_quota(len(positives), len(negatives), selection)
    num_negatives = min(selection.keep, len(counted)) - num_positives
    if selection.positives == "sorted":
        by_quality = sorted(positives, key=lambda trajectory: quality_penalty(trajectory.summary))
        drawn = by_quality[:num_positives] + negatives[:num_negatives]
    else:
        drawn = _draw_weighted(positives, num_positives, draws) + draws.sample(negatives, num_negatives)
    return sorted(drawn, key=lambda trajectory: trajectory.summary.sample_index)


def _draw_weighted(positives: Sequence[TrajectoryRef], count: int, draws: random.Random) -> list[TrajectoryRef]:
    """Draw without replacement, in proportion to the weights, by exponential clocks (Efraimidis and Spirakis, 2006)."""
    rings = [draws.expovariate(1.0 / (quality_penalty(p.summary) + _WEIGHT_OFFSET)) for p in positives]
    return [positives[index] for index in sorted(range(len(positives)), key=rings.__getitem__)[:count]]
