"""Plan of an update: assignment of trajectories to ranks and mini-batches. Runs on the driver, without torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.errors import RolloutError
from agentrl.observability.reports.outcome import is_solved
from agentrl.training.packing.families import Family, SequenceCost, balanced
from agentrl.types import Group, TrajectoryRef, TrajectorySummary


def with_scores(
    groups: Sequence[Group], scores: Mapping[str, float], *, reward_weight: float, score_weight: float
) -> list[Group]:
    """Return the groups with `reward_weight x reward + score_weight x score` as rewards; `scores` are by trajectory id."""
    weighed = []
    for group in groups:
        members = []
        for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
            summary = trajectory.summary
            score = scores[summary.trajectory_id]
            if not math.isfinite(score):
                raise RolloutError(f"reward model: trajectory `{summary.trajectory_id}` has the score {score}")
            total = reward_weight * reward + score_weight * score
            members.append(replace(trajectory, summary=replace(summary, reward=total)))
        weighed.append(replace(group, trajectories=members))
    return weighed


def score_metrics(
    groups: Sequence[Group], scores: Mapping[str, float], selection: SelectionSection
) -> dict[str, float]:
    """Return the mean score, and its margin of solved over unsolved trajectories; an uninformative model has margin 0.

    The rewards of `groups` are those before the scores were added.
    """
    summaries = [trajectory.summary for group in groups for trajectory in group.trajectories]
    solved = [scores[summary.trajectory_id] for summary in summaries if is_solved(summary, selection)]
    unsolved = [scores[summary.trajectory_id] for summary in summaries if not is_solved(summary, selection)]
    metrics = {"reward_model/score_mean": _mean([scores[summary.trajectory_id] for summary in summaries])}
    if solved and unsolved:
        metrics["reward_model/score_margin"] = _mean(solved) - _mean(unsolved)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingItem:
    """Place of a trajectory: `group_rewards[group][member]` is its reward."""

    group: int
    member: int
    mini_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShard:
    """One rank's part of an update, without the trajectories."""

    step: int
    num_mini_batches: int
    group_rewards: list[list[float]]
    """Rewards of all groups, on every rank: advantages need whole groups."""
    items: list[TrainingItem]
    kl_coefficient: float | None = None
    """KL coefficient of this step, for the critic; None: the config's."""


def plan_update(
    groups: Sequence[Group],
    *,
    step: int,
    num_ranks: int,
    num_mini_batches: int,
    kl_coefficient: float | None = None,
) -> list[tuple[UpdateShard, list[TrajectoryRef]]]:
    """Divide the trajectories of a step over mini-batches and ranks, each trajectory exactly once.

    Mini-batches take whole groups, in order and in even numbers; with fewer groups than mini-batches there are fewer of them.
    Within a mini-batch, groups are split into as many parts as minimise the slowest rank's cost, where each part computes its
    own prompt. Parts go to ranks costliest first, each to the cheapest rank so far.

    Returns for each rank its shard and its trajectories; ValueError if a trajectory has no reward.
    """
    for group in groups:
        if len(group.rewards) != len(group.trajectories):
            raise ValueError(
                f"plan_update: group `{group.prompt_id}` has a trajectory without a reward; `select` first"
            )
    num_mini_batches = min(num_mini_batches, len(groups))
    items: list[list[TrainingItem]] = [[] for _ in range(num_ranks)]
    for mini_batch in range(num_mini_batches):
        first, last = (number * len(groups) // num_mini_batches for number in (mini_batch, mini_batch + 1))
        shares = _spread(groups, range(first, last), num_ranks, share_prefixes=True)
        for own, places in zip(items, shares, strict=True):
            own += [TrainingItem(group=group, member=member, mini_batch=mini_batch) for group, member in places]
    rewards = [group.rewards for group in groups]
    return [
        (
            UpdateShard(
                step=step,
                num_mini_batches=num_mini_batches,
                group_rewards=rewards,
                items=own,
                kl_coefficient=kl_coefficient,
            ),
            [groups[item.group].trajectories[item.member] for item in own],
        )
        for own in items
    ]


def plan_scoring(groups: Sequence[Group], *, num_ranks: int, share_prefixes: bool = True) -> list[list[int]]:
    """Divide the trajectories of a step, numbered through all groups, over ranks that only score them."""
    if not groups:
        return [[] for _ in range(num_ranks)]
    firsts = [0, *accumulate(len(group.trajectories) for group in groups)]
    shares = _spread(groups, range(len(groups)), num_ranks, share_prefixes=share_prefixes)
    return [[firsts[group] + member for group, member in places] for places in shares]


def _spread(
    groups: Sequence[Group], chosen: range, num_ranks: int, *, share_prefixes: bool
) -> list[list[tuple[int, int]]]:
    """Return for each rank its trajectories of the chosen groups, as `(group, member)`."""
    largest = max(len(groups[index].trajectories) for index in chosen)
    best: list[list[tuple[int, int]]] = []
    slowest = math.inf
    # Powers of two, and single trajectories: few enough to try, and the optimum is rarely much better.
    for num_parts in sorted({min(2**power, largest) for power in range(largest.bit_length() + 1)}):
        parts = [part for index in chosen for part in _parts(index, groups[index], num_parts)]
        costs = [
            _cost([groups[group].trajectories[member].summary for group, member in part], share_prefixes=share_prefixes)
            for part in parts
        ]
        ranks = balanced(costs, num_ranks)
        spent = max(sum(costs[part] for part in own) for own in ranks)
        if spent < slowest:
            slowest = spent
            best = [[place for part in own for place in parts[part]] for own in ranks]
    return best


def _parts(index: int, group: Group, num_parts: int) -> list[list[tuple[int, int]]]:
    """Deal a group into parts, longest first, so that they cost about the same."""
    members = range(len(group.trajectories))
    ordered = sorted(members, key=lambda member: -group.trajectories[member].summary.num_tokens)
    return [[(index, member) for member in ordered[first::num_parts]] for first in range(min(num_parts, len(ordered)))]


def _cost(summaries: Sequence[TrajectorySummary], *, share_prefixes: bool) -> float:
    lengths = [summary.num_tokens for summary in summaries]
    if share_prefixes and len(summaries) > 1:
        prompt = min(summary.num_prompt_tokens for summary in summaries)
        return SequenceCost().of(Family(members=tuple(range(len(summaries))), num_shared=prompt), lengths)
    return sum(SequenceCost().of(Family(members=(index,), num_shared=0), lengths) for index in range(len(summaries)))
