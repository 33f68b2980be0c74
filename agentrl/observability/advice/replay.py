"""Counterfactual step times: each step is replayed as it was recorded, and without the time of one stage.

A trajectory is a job of known parts. It takes one of the *places*, as many as trajectories ran at once, in the order in which
the jobs started; a batch is ready when its last job ends. A stage costs what the step is longer than the replay without it, so
waits that other trajectories hide cost nothing. With `rollout.max_staleness` = n a batch enters n steps before it is taken, the
engines go on during updates, and a stage that hides behind another costs nothing either.

Stages are removed one at a time. Their costs do not add up: two that run side by side may both cost nothing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heapreplace
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from agentrl.observability.step_time import StepTime
from agentrl.timing import TIME_PARTS
from agentrl.types import TrajectorySummary

_NEGLIGIBLE = 0.05
"""Share of a batch's time below which a part is not replayed, as it cannot matter."""

_ROUNDING_S = 1e-6
"""Tolerance for a place that seems to be taken before it was left."""

_PARTS = attrgetter(*TIME_PARTS)
_COLUMN = {name: column for column, name in enumerate(TIME_PARTS)}
_HELD = slice(_COLUMN["dispatch_s"], _COLUMN["tail_wait_s"])
"""Parts during which a trajectory holds a place: all between its first and its last one, the waits."""

Array = NDArray[np.float64]


class Stage(StrEnum):
    """A part of the time of a step."""

    SAMPLING = "sampling"
    """Sampling without its tail: what stays if all trajectories of a batch sample equally long."""
    TAIL = "sampling tail"
    """Unequal sampling: what a step is longer than if each trajectory sampled for the mean time."""
    ENGINE_QUEUE = "engine queue"
    JUDGE_QUEUE = "judge queue"
    TOOLS = "tools"
    REWARD = "reward"
    TOKENISE = "tokenising"
    DISPATCH = "dispatch"
    RETRY = "retries"
    UPDATE = "update"
    WEIGHT_SYNC = "weight sync"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"


_COLUMNS_OF = {
    Stage.SAMPLING: [_COLUMN["generate_s"]],
    Stage.ENGINE_QUEUE: [_COLUMN["engine_queue_s"]],
    Stage.JUDGE_QUEUE: [_COLUMN["judge_queue_s"], _COLUMN["reward_queue_s"]],  # the same judge
    Stage.TOOLS: [_COLUMN["tool_s"]],
    Stage.REWARD: [_COLUMN["reward_s"]],
    Stage.TOKENISE: [_COLUMN["tokenise_s"]],
    Stage.DISPATCH: [_COLUMN["dispatch_s"]],
    Stage.RETRY: [_COLUMN["retry_s"]],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """A replayed step: its length, and how much shorter it would have been without each stage."""

    length_s: float
    saved_s: Mapping[Stage, float]


@dataclass(slots=True)
class _Timeline:
    """A sequence of replayed steps."""

    num_ahead: int
    now_s: float = 0.0
    entries_s: list[float] = field(default_factory=list)
    """Starts of the last `num_ahead` + 1 steps; a batch entered with the first of them."""
    places_s: list[float] = field(default_factory=list)
    """Heap of the times at which the places become free."""

    def copy(self) -> "_Timeline":
        return _Timeline(self.num_ahead, self.now_s, self.entries_s.copy(), self.places_s.copy())

    def roll_out(self, batch: "_Batch", held_s: Array) -> float:
        """Play the jobs of `batch`, which hold their places for `held_s`; return the wait for the last one."""
        self.entries_s = [*self.entries_s[-self.num_ahead :], self.now_s] if self.num_ahead else [self.now_s]
        ready_s = self.entries_s[0]
        for first, last in zip([0, *batch.bounds], [*batch.bounds, len(held_s)], strict=True):
            jobs_s = held_s[first:last]  # a round, which enters when the one before it is over
            ready_s = (
                self._queue(jobs_s, batch.num_places, ready_s) if batch.queues else ready_s + jobs_s.max(initial=0)
            )
        return max(0.0, float(ready_s) - self.now_s)

    def _queue(self, jobs_s: Array, num_places: int, entered_s: float) -> float:
        places = self.places_s
        if max(places, default=0.0) <= entered_s:  # all are free
            places[:] = (jobs_s[:num_places] + entered_s).tolist()
            jobs_s = jobs_s[num_places:]
        else:
            places[:] = [place_s if place_s > entered_s else entered_s for place_s in places]
        places.extend([entered_s] * (num_places - len(places)))
        heapify(places)
        for job_s in jobs_s.tolist():
            heapreplace(places, places[0] + job_s)
        return max(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The jobs of a batch, in the order of their starts."""

    parts_s: Array
    """[parts, jobs]."""
    bounds: list[int]
    """First jobs of the second and later rounds, which refill the batch."""
    num_places: int
    queues: bool
    """True if jobs waited for a place."""
    makespan_s: float
    """Recorded length of the rounds."""

    def held_without(self, kept: float) -> dict[Stage, Array]:
        """Return how long jobs hold their places where a stage keeps only this share of its time.

        Stages that cannot matter are missing.
        """
        held_s = self.parts_s[_HELD].sum(axis=0)
        num_at_once = self.num_places if self.queues else max(1, held_s.size)
        least_s = _NEGLIGIBLE * max(held_s.max(initial=0.0), held_s.sum() / num_at_once)

        def matters(change_s: Array) -> bool:
            return bool(change_s.max(initial=0.0) + change_s.sum() / num_at_once > least_s)

        changes = {stage: self.parts_s[columns].sum(axis=0) for stage, columns in _COLUMNS_OF.items()}
        sampled_s = changes[Stage.SAMPLING]
        changes[Stage.TAIL] = sampled_s - sampled_s.mean() if sampled_s.size else sampled_s
        return {stage: held_s - (1 - kept) * change_s for stage, change_s in changes.items() if matters(change_s)}


class Replay:
    """Replays the steps of a run, one after the other."""

    def __init__(self, *, num_ahead: int, kept: float = 0.0) -> None:
        """Take `rollout.max_staleness`, and the share of its time that a stage keeps when it is replayed without."""
        self._num_ahead, self._kept = num_ahead, kept
        self._baseline = _Timeline(num_ahead)
        self._timelines: dict[Stage, _Timeline] = {}
        """Timelines that differ from the baseline."""
        self._num_places = 1
        self._runs: deque[tuple[Array, Array]] = deque(maxlen=num_ahead + 1)
        """Starts and ends of the trajectories of the last batches, which may have run at once."""

    def add(
        self,
        summaries: Sequence[TrajectorySummary],
        spent: StepTime,
        *,
        validation_s: float = 0.0,
        checkpoint_s: float = 0.0,
    ) -> StepCosts:
        """Replay the next step: its trajectories, and the times of the driver."""
        batch, num_ahead = self._read(summaries), self._num_ahead
        driver_s = {
            Stage.UPDATE: spent.update_s,
            Stage.WEIGHT_SYNC: spent.weight_sync_s,
            Stage.VALIDATION: validation_s,
            Stage.CHECKPOINT: checkpoint_s,
        }
        held_s: Array = batch.parts_s[_HELD].sum(axis=0)
        alternatives = batch.held_without(self._kept)
        before = self._baseline.copy()
        wait_s, rest_s, stretch = self._baseline.roll_out(batch, held_s), sum(driver_s.values()), 1.0
        if not num_ahead:
            # The replay is shorter than the record where places were not open all the time (`rollout/judge_limit`).
            stretch = batch.makespan_s / wait_s if wait_s else 1.0
            rest_s += spent.rollout_s - batch.makespan_s  # the driver's: recording, selection
        length_s = stretch * wait_s + rest_s
        self._baseline.now_s += length_s
        saved_s: dict[Stage, float] = {}
        for stage in Stage:
            removed_s = driver_s.get(stage, 0.0) * (1 - self._kept)
            timeline = self._timelines.get(stage)
            if timeline is None and (stage in alternatives or (num_ahead and removed_s > _NEGLIGIBLE * length_s)):
                timeline = before.copy()
            if timeline is None:
                saved_s[stage] = 0.0 if num_ahead else removed_s
                continue
            without_s = stretch * timeline.roll_out(batch, alternatives.get(stage, held_s)) + rest_s - removed_s
            timeline.now_s += without_s
            saved_s[stage] = length_s - without_s
            if num_ahead:  # synchronous steps are independent
                self._timelines[stage] = timeline
        saved_s[Stage.TAIL] = max(0.0, saved_s[Stage.TAIL])
        saved_s[Stage.SAMPLING] -= saved_s[Stage.TAIL]  # sampling is removed after its tail
        return StepCosts(length_s=length_s, saved_s=saved_s)

    def _read(self, summaries: Sequence[TrajectorySummary]) -> _Batch:
        count = len(summaries)
        parts = chain.from_iterable(_PARTS(summary.times) for summary in summaries)
        parts_s = np.fromiter(parts, float, count * len(TIME_PARTS)).reshape(count, len(TIME_PARTS)).T
        ended = np.fromiter((summary.finished_at for summary in summaries), float, count)
        started = ended - parts_s[_HELD].sum(axis=0)
        order = np.argsort(started, kind="stable")
        parts_s, started, ended = parts_s[:, order], started[order], ended[order]
        self._runs.append((started, ended))
        self._num_places = max(self._num_places if self._num_ahead else 1, _most_at_once(self._runs))
        waited_s = parts_s[_COLUMN["admission_wait_s"]]
        entered = started - waited_s
        gaps_s = entered[1:] - np.maximum.accumulate(ended)[:-1]
        between_s = gaps_s[gaps_s > 0.0].sum()
        return _Batch(
            parts_s=parts_s,
            bounds=(np.flatnonzero(gaps_s > 0.0) + 1).tolist(),
            num_places=self._num_places,
            queues=bool(waited_s.max(initial=0.0) > _NEGLIGIBLE * (ended - started).max(initial=0.0)),
            makespan_s=float(ended.max() - entered.min() - between_s) if count else 0.0,
        )


def _most_at_once(runs: Sequence[tuple[Array, Array]]) -> int:
    """Return the most trajectories that ran at once."""
    starts = np.sort(np.concatenate([started for started, _ in runs]))
    ends = np.sort(np.concatenate([ended for _, ended in runs]))
    over = ends.searchsorted(starts + _ROUNDING_S, side="right")
    return int((np.arange(1, starts.size + 1) - over).max(initial=1))
