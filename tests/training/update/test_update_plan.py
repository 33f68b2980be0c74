import dataclasses
import random

import pytest

from agentrl.training.update.update_plan import plan_scoring, plan_update
from agentrl.types import Group
from tests.training.training_cases import make_group


def groups_of(sizes: list[int]) -> list[Group]:
    draws = random.Random(0)
    return [make_group(draws, f"p{number}", size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("num_mini_batches", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[1], [3, 2], [16, 16, 5, 7]])
def test_every_trajectory_is_trained_on_exactly_once(sizes: list[int], num_ranks: int, num_mini_batches: int):
    groups = groups_of(sizes)
    shares = plan_update(groups, step=3, num_ranks=num_ranks, num_mini_batches=num_mini_batches)
    assert len(shares) == num_ranks
    seen = []
    for shard, refs in shares:
        assert shard.step == 3
        assert shard.num_mini_batches == min(num_mini_batches, len(groups))
        assert shard.group_rewards == [group.rewards for group in groups]
        for item, ref in zip(shard.items, refs, strict=True):
            assert groups[item.group].trajectories[item.member] is ref
            seen.append((item.group, item.member))
    assert sorted(seen) == [(g, m) for g, size in enumerate(sizes) for m in range(size)]


def test_mini_batches_take_whole_groups_in_order():
    shares = plan_update(groups_of([4] * 7), step=1, num_ranks=2, num_mini_batches=3)
    items = [item for shard, _ in shares for item in shard.items]
    mini_batch_of = {group: {item.mini_batch for item in items if item.group == group} for group in range(7)}
    assert list(mini_batch_of.values()) == [{0}, {0}, {1}, {1}, {2}, {2}, {2}]


def test_ranks_are_balanced_by_tokens_within_each_mini_batch():
    groups = groups_of([16] * 6)
    longest = max(trajectory.summary.num_tokens for group in groups for trajectory in group.trajectories)
    shares = plan_update(groups, step=1, num_ranks=4, num_mini_batches=2)
    for mini_batch in range(2):
        tokens = [
            sum(
                ref.summary.num_tokens
                for item, ref in zip(shard.items, refs, strict=True)
                if item.mini_batch == mini_batch
            )
            for shard, refs in shares
        ]
        assert max(tokens) - min(tokens) <= longest


def test_a_trajectory_without_a_reward_is_never_trained_on():
    [group] = groups_of([2])
    first = group.trajectories[0]
    unscored = dataclasses.replace(first, summary=dataclasses.replace(first.summary, reward=None))
    with pytest.raises(ValueError, match="without a reward"):
        plan_update(
            [Group(prompt_id="p", trajectories=[unscored, group.trajectories[1]])],
            step=1,
            num_ranks=1,
            num_mini_batches=1,
        )


def with_prompts(groups: list[Group], num_prompt_tokens: int) -> list[Group]:
    """Return the groups with a prompt of this length before each trajectory."""
    return [
        dataclasses.replace(
            group,
            trajectories=[
                dataclasses.replace(
                    trajectory,
                    summary=dataclasses.replace(
                        trajectory.summary,
                        num_tokens=trajectory.summary.num_tokens + num_prompt_tokens,
                        num_prompt_tokens=num_prompt_tokens,
                    ),
                )
                for trajectory in group.trajectories
            ],
        )
        for group in groups
    ]


def test_groups_with_long_prompts_stay_on_one_rank():
    groups = with_prompts(groups_of([8] * 4), 500)
    shares = plan_update(groups, step=1, num_ranks=2, num_mini_batches=1)
    ranks_of = [
        {rank for rank, (shard, _) in enumerate(shares) for item in shard.items if item.group == group}
        for group in range(4)
    ]
    assert all(len(ranks) == 1 for ranks in ranks_of)


def test_a_single_group_is_divided_over_all_ranks():
    shares = plan_update(with_prompts(groups_of([16]), 100), step=1, num_ranks=4, num_mini_batches=1)
    assert [len(refs) for _, refs in shares] == [4, 4, 4, 4]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("sizes", [[], [1], [3, 0, 2], [16, 16, 5, 7]])
def test_every_trajectory_is_scored_on_exactly_one_rank(sizes: list[int], num_ranks: int):
    shares = plan_scoring(groups_of(sizes), num_ranks=num_ranks)
    assert len(shares) == num_ranks
    assert sorted(number for share in shares for number in share) == list(range(sum(sizes)))


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_groups_stay_on_one_rank_for_scoring_if_prefixes_are_shared(share_prefixes: bool):
    groups = with_prompts(groups_of([8] * 4), 500)
    shares = plan_scoring(groups, num_ranks=2, share_prefixes=share_prefixes)
    ranks_of = [{rank for rank, share in enumerate(shares) for number in share if number // 8 == g} for g in range(4)]
    assert all(len(ranks) == 1 for ranks in ranks_of) == share_prefixes
