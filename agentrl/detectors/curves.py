"""From the scan of a run to a curve per detector: the share of trajectories hit, and the rewards of both kinds."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from agentrl.detectors.base import Detector
from agentrl.detectors.scan import StepScan

_WINDOW = 3
"""Steps before and after a change that are compared."""
_MAX_CHANGES = 3
_STANDARD_ERRORS = 4.0
"""Size of a change that is no chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One step. Example: 6 of 192 hit, and paid less than the others: `CurvePoint(step=4, num_hit=6, num_trajectories=192,
    hit_reward=0.2, other_reward=0.6)`.
    """

    step: int
    num_hit: int
    num_trajectories: int
    hit_reward: float | None
    """Mean reward of the trajectories hit; None without a scored one."""
    other_reward: float | None

    @property
    def share(self) -> float:
        """Share of trajectories hit."""
        return self.num_hit / self.num_trajectories if self.num_trajectories else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A step at which the share changed."""

    step: int
    before: float
    """Share of the three steps before it."""
    after: float
    """Share of the three steps from it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Findings of one detector in a run."""

    name: str
    meaning: str
    points: list[CurvePoint]
    """Empty if the detector was given up."""
    changes: list[Change]
    """Largest first."""
    examples: list[str]
    """Ids of the first, the middle and the last trajectory hit."""
    mean_hit_reward: float | None
    """Mean reward of the trajectories hit, in all steps."""
    mean_other_reward: float | None
    threshold: float | None
    """Number above which a trajectory is hit, for a detector that measures."""
    problem: str
    """Reason why the detector was given up; empty if it was not."""

    @property
    def num_hit(self) -> int:
        """Trajectories hit in all steps."""
        return sum(point.num_hit for point in self.points)

    @property
    def hit_rewards(self) -> list[float | None]:
        """Mean reward of the trajectories hit, per step."""
        return [point.hit_reward for point in self.points]

    @property
    def other_rewards(self) -> list[float | None]:
        """Mean reward of the other trajectories, per step."""
        return [point.other_reward for point in self.points]


def curves_of(scans: Sequence[StepScan], detectors: Iterable[Detector]) -> list[Curve]:
    """Return the curve of each detector."""
    return [_curve(detector, scans) for detector in detectors]


def _curve(detector: Detector, scans: Sequence[StepScan]) -> Curve:
    name = detector.name
    problem = next((scan.problems[name] for scan in scans if name in scan.problems), "")
    used = [] if problem else [scan for scan in scans if scan.trajectory_ids]
    threshold = None
    if any(name in scan.measured for scan in used):
        threshold = _ninth_decile(used[0].values[name])
    hits = [[value > (threshold or 0.0) for value in scan.values[name]] for scan in used]
    points = [_point(scan, hit) for scan, hit in zip(used, hits, strict=True)]
    ids = [
        trajectory_id
        for scan, hit in zip(used, hits, strict=True)
        for trajectory_id, is_hit in zip(scan.trajectory_ids, hit, strict=True)
        if is_hit
    ]
    all_scored = [item for scan, hit in zip(used, hits, strict=True) for item in _scored(scan, hit)]
    return Curve(
        name=name,
        meaning=detector.meaning,
        points=points,
        changes=_changes(points),
        examples=list(dict.fromkeys(ids[index] for index in (0, len(ids) // 2, -1))) if ids else [],
        mean_hit_reward=_mean(reward for reward, is_hit in all_scored if is_hit),
        mean_other_reward=_mean(reward for reward, is_hit in all_scored if not is_hit),
        threshold=threshold,
        problem=problem,
    )


def _ninth_decile(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def _point(scan: StepScan, hit: Sequence[bool]) -> CurvePoint:
    scored = _scored(scan, hit)
    return CurvePoint(
        step=scan.step,
        num_hit=sum(hit),
        num_trajectories=len(hit),
        hit_reward=_mean(reward for reward, is_hit in scored if is_hit),
        other_reward=_mean(reward for reward, is_hit in scored if not is_hit),
    )


def _scored(scan: StepScan, hit: Sequence[bool]) -> list[tuple[float, bool]]:
    return [(reward, is_hit) for reward, is_hit in zip(scan.rewards, hit, strict=True) if not math.isnan(reward)]


def _mean(rewards: Iterable[float]) -> float | None:
    rewards = list(rewards)
    return fmean(rewards) if rewards else None


def _changes(points: Sequence[CurvePoint]) -> list[Change]:
    """Return the steps at which the share changed most, by more than chance, none within three steps of a larger one."""
    kept: dict[int, Change] = {}
    for index, change in sorted(_candidates(points), key=lambda item: -abs(item[1].after - item[1].before)):
        if len(kept) < _MAX_CHANGES and all(abs(index - other) >= _WINDOW for other in kept):
            kept[index] = change
    return [*kept.values()]


def _candidates(points: Sequence[CurvePoint]) -> Iterator[tuple[int, Change]]:
    for index in range(1, len(points)):
        windows = points[max(0, index - _WINDOW) : index], points[index : index + _WINDOW]
        sizes = [sum(point.num_trajectories for point in window) for window in windows]
        before, after = (sum(point.num_hit for point in w) / size for w, size in zip(windows, sizes, strict=True))
        pooled = (before * sizes[0] + after * sizes[1]) / sum(sizes)
        error = math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))
        if abs(after - before) > _STANDARD_ERRORS * error > 0:
            yield index, Change(step=points[index].step, before=before, after=after)
