"""What a reward model says, in the rewards that are trained on. Runs on the driver, without torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.config.algorithm_schema import SelectionSection
from agentrl.errors import RolloutError
from agentrl.observability.outcome import is_solved
from agentrl.types import Group


def with_scores(
    groups: Sequence[Group], scores: Mapping[str, float], *, reward_weight: float, score_weight: float
) -> list[Group]:
    """Return the groups with `reward_weight x reward + score_weight x score` as the rewards of their trajectories.

    Args:
        groups: selected ones, so that every trajectory has a reward.
        scores: of the reward model, by the id of the trajectory.
        reward_weight: of what there is.
        score_weight: of what comes to it.

    Raises:
        RolloutError: a score is not finite.
    """
    weighed = []
    for group in groups:
        members = []
        for made, reward in zip(group.trajectories, group.rewards, strict=True):
            score = scores[made.summary.trajectory_id]
            if not math.isfinite(score):
                raise RolloutError(f"reward model: trajectory `{made.summary.trajectory_id}` has the score {score}")
            total = reward_weight * reward + score_weight * score
            members.append(replace(made, summary=replace(made.summary, reward=total)))
        weighed.append(replace(group, trajectories=members))
    return weighed


def score_metrics(
    groups: Sequence[Group], scores: Mapping[str, float], selection: SelectionSection
) -> dict[str, float]:
    """Return the mean score, and how much higher it is for solved trajectories: a model that says nothing gives 0.

    Args:
        groups: with the rewards that the model has no say in.
        scores: by the id of the trajectory.
        selection: what solved means.
    """
    made = [one.summary for group in groups for one in group.trajectories]
    found = {True: [], False: []}
    for summary in made:
        found[is_solved(summary, selection)].append(scores[summary.trajectory_id])
    means = {solved: sum(values) / len(values) if values else 0.0 for solved, values in found.items()}
    metrics = {"reward_model/score_mean": sum(scores[one.trajectory_id] for one in made) / len(made)}
    if found[True] and found[False]:
        metrics["reward_model/score_margin"] = means[True] - means[False]
    return metrics
