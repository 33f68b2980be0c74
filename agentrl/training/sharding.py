"""The plan of one update: which rank trains on which trajectory, in which mini-batch. Runs on the driver, without torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.types import Group, TrajectoryRef


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingItem:
    """Where a trajectory stands: `group_rewards[group][member]` is its reward."""

    group: int
    member: int
    mini_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShard:
    """One rank's part of an update, apart from the trajectories themselves.

    Example, for the second of two ranks: `UpdateShard(step=3, num_mini_batches=1, group_rewards=[[1.0, 0.0]],
    items=[TrainingItem(group=0, member=1, mini_batch=0)])`.
    """

    step: int
    num_mini_batches: int
    group_rewards: list[list[float]]
    """Of all groups, whoever trains on them: advantages are over whole groups."""
    items: list[TrainingItem]
    """`items[i]` belongs to the i-th trajectory that this rank is given."""


def plan_update(
    groups: Sequence[Group], *, step: int, num_ranks: int, num_mini_batches: int
) -> list[tuple[UpdateShard, list[TrajectoryRef]]]:
    """Divide the trajectories of a step over mini-batches and ranks; each is trained on exactly once.

    Groups go to mini-batches in order, whole and in even numbers (fewer groups than mini-batches make fewer of them).
    Within a mini-batch, trajectories go to ranks longest first, each to the rank with the fewest tokens so far.

    Returns:
        For each rank its shard and its trajectories.

    Raises:
        ValueError: there is no group, or a trajectory without a reward.
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
            (TrainingItem(group=index, member=member, mini_batch=mini_batch), made)
            for index in range(first, last)
            for member, made in enumerate(groups[index].trajectories)
        ]
        _spread(entries, shares)
    rewards = [group.rewards for group in groups]
    return [
        (
            UpdateShard(
                step=step,
                num_mini_batches=num_mini_batches,
                group_rewards=rewards,
                items=[item for item, _ in share],
            ),
            [made for _, made in share],
        )
        for share in shares
    ]


def _spread(
    entries: list[tuple[TrainingItem, TrajectoryRef]], shares: list[list[tuple[TrainingItem, TrajectoryRef]]]
) -> None:
    num_tokens = [0] * len(shares)
    for item, made in sorted(entries, key=lambda entry: -entry[1].summary.num_tokens):
        lightest = min(range(len(shares)), key=lambda rank: (num_tokens[rank], rank))
        shares[lightest].append((item, made))
        num_tokens[lightest] += made.summary.num_tokens
