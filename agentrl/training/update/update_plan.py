"""Plan of an update: assignment of trajectories to ranks and mini-batches. Runs on the driver, without torch."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.errors import RolloutError
from agentrl.observability.reports.outcome import is_solved
from agentrl.training.packing.families import Family, SequenceCost
from agentrl.types import Group, TrajectoryRef


def with_scores(
    groups: Sequence[Group], scores: Mapping[str, float], *, reward_weight: float, score_weight: float
) -> list[Group]:
    """Return the groups with `reward_weight x reward + score_weight x score` as the rewards of their trajectories.

    Args:
        groups: selected groups, in which every trajectory has a reward.
        scores: scores of the reward model, by trajectory id.
        reward_weight: factor on the reward.
        score_weight: factor on the score.

    Raises:
        RolloutError: a score is not finite.
    """
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

    Args:
        groups: groups with their rewards before the scores were added.
        scores: scores by trajectory id.
        selection: definition of solved.
    """
    summaries = [trajectory.summary for group in groups for trajectory in group.trajectories]
    by_outcome: dict[bool, list[float]] = {True: [], False: []}
    for summary in summaries:
        by_outcome[is_solved(summary, selection)].append(scores[summary.trajectory_id])
    means = {solved: sum(values) / len(values) if values else 0.0 for solved, values in by_outcome.items()}
    metrics = {"reward_model/score_mean": sum(scores[summary.trajectory_id] for summary in summaries) / len(summaries)}
    if by_outcome[True] and by_outcome[False]:
        metrics["reward_model/score_margin"] = means[True] - means[False]
    return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingItem:
    """Place of a trajectory: `group_rewards[group][member]` is its reward."""

    group: int
    member: int
    mini_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShard:
    """One rank's part of an update, without the trajectories.

    Example, second of two ranks: `UpdateShard(step=3, num_mini_batches=1, group_rewards=[[1.0, 0.0]],
    items=[TrainingItem(group=0, member=1, mini_batch=0)])`.
    """

    step: int
    num_mini_batches: int
    group_rewards: list[list[float]]
    """Rewards of all groups, on every rank: advantages need whole groups."""
    items: list[TrainingItem]
    """Places of this rank's trajectories, in their order."""
    kl_coefficient: float | None = None
    """KL coefficient of this step, for the critic; None: the config's."""


def plan_update(
    groups: Sequence[Group],
    *,
    step: int,
    num_ranks: int,
    num_mini_batches: int,
    share_prefixes: bool = True,
    kl_coefficient: float | None = None,
) -> list[tuple[UpdateShard, list[TrajectoryRef]]]:
    """Divide the trajectories of a step over mini-batches and ranks, each trajectory exactly once.

    Mini-batches take whole groups, in order and in even numbers; with fewer groups than mini-batches there are fewer of them.
    Within a mini-batch, groups are split into as many parts as minimise the slowest rank's cost, where each part computes its
    own prompt if prefixes are shared. Parts go to ranks costliest first, each to the cheapest rank so far.

    Returns:
        For each rank its shard and its trajectories.

    Raises:
        ValueError: there is no group, or a trajectory has no reward.
    """
    if not groups:
        raise ValueError(f"plan_update: step {step} has no group to train on; the runner must not update with none")
    for group in groups:
        if len(group.rewards) != len(group.trajectories):
            raise ValueError(
                f"plan_update: group `{group.prompt_id}` has a trajectory without a reward; `select` first"
            )
    num_mini_batches = min(num_mini_batches, len(groups))
    shares: list[list[tuple[TrainingItem, TrajectoryRef]]] = [[] for _ in range(num_ranks)]
    for mini_batch in range(num_mini_batches):
        first = mini_batch * len(groups) // num_mini_batches
        last = (mini_batch + 1) * len(groups) // num_mini_batches
        entries = [
            [
                (TrainingItem(group=index, member=member, mini_batch=mini_batch), trajectory)
                for member, trajectory in enumerate(groups[index].trajectories)
            ]
            for index in range(first, last)
        ]
        _spread(entries, shares, share_prefixes=share_prefixes)
    rewards = [group.rewards for group in groups]
    return [
        (
            UpdateShard(
                step=step,
                num_mini_batches=num_mini_batches,
                group_rewards=rewards,
                items=[item for item, _ in share],
                kl_coefficient=kl_coefficient,
            ),
            [trajectory for _, trajectory in share],
        )
        for share in shares
    ]


def plan_scoring(groups: Sequence[Group], *, num_ranks: int, share_prefixes: bool = True) -> list[list[int]]:
    """Divide the trajectories of a step over ranks that only score them, as `plan_update` divides a mini-batch.

    Returns:
        For each rank the numbers of its trajectories, counted through all groups.
    """
    firsts = [0, *accumulate(len(group.trajectories) for group in groups)]
    entries = [
        [
            (TrainingItem(group=index, member=member, mini_batch=0), trajectory)
            for member, trajectory in enumerate(group.trajectories)
        ]
        for index, group in enumerate(groups)
    ]
    shares: list[list[tuple[TrainingItem, TrajectoryRef]]] = [[] for _ in range(num_ranks)]
    if entries:
        _spread(entries, shares, share_prefixes=share_prefixes)
    return [[firsts[item.group] + item.member for item, _ in share] for share in shares]


def _spread(
    groups: Sequence[list[tuple[TrainingItem, TrajectoryRef]]],
    shares: list[list[tuple[TrainingItem, TrajectoryRef]]],
    *,
    share_prefixes: bool,
) -> None:
    """Add the trajectories of a mini-batch to the shares of the ranks."""
    largest = max(len(entries) for entries in groups)
    best: list[list[tuple[TrainingItem, TrajectoryRef]]] = []
    slowest = float("inf")
    # Powers of two, and single trajectories: few enough to try, and the optimum is rarely much better.
    for num_parts in sorted({min(2**power, largest) for power in range(largest.bit_length() + 1)}):
        parts = [part for entries in groups for part in _parts(entries, num_parts)]
        costs = [_cost([trajectory for _, trajectory in part], share_prefixes=share_prefixes) for part in parts]
        ranks, spent = _assigned(costs, len(shares))
        if max(spent) < slowest:
            slowest = max(spent)
            best = [[entry for index in chosen for entry in parts[index]] for chosen in ranks]
    for share, entries in zip(shares, best, strict=True):
        share += entries


def _parts(
    entries: list[tuple[TrainingItem, TrajectoryRef]], num_parts: int
) -> list[list[tuple[TrainingItem, TrajectoryRef]]]:
    """Deal a group into parts, longest first, so that they cost about the same."""
    ordered = sorted(entries, key=lambda entry: -entry[1].summary.num_tokens)
    return [ordered[first::num_parts] for first in range(min(num_parts, len(ordered)))]


def _cost(trajectories: Sequence[TrajectoryRef], *, share_prefixes: bool) -> float:
    summaries = [trajectory.summary for trajectory in trajectories]
    lengths = [summary.num_tokens for summary in summaries]
    if share_prefixes and len(summaries) > 1:
        prompt = min(summary.num_prompt_tokens for summary in summaries)
        return SequenceCost().of(Family(members=tuple(range(len(summaries))), num_shared=prompt), lengths)
    return sum(SequenceCost().of(Family(members=(index,), num_shared=0), lengths) for index in range(len(summaries)))


def _assigned(costs: Sequence[float], num_ranks: int) -> tuple[list[list[int]], list[float]]:
    """Assign each part, costliest first, to the cheapest rank; return the parts and the cost of each rank."""
    chosen: list[list[int]] = [[] for _ in range(num_ranks)]
    cheapest = [(0.0, rank) for rank in range(num_ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        spent, rank = cheapest[0]
        chosen[rank].append(index)
        heapq.heapreplace(cheapest, (spent + costs[index], rank))
    return chosen, [spent for spent, _ in sorted(cheapest, key=lambda pair: pair[1])]
