"""Scores of a reward model as part of the rewards. Runs on the driver, without torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.errors import RolloutError
from agentrl.observability.reports.outcome import is_solved
from agentrl.types import Group


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
