import random
from collections import Counter
from collections.abc import Sequence

import pytest

from agentrl.algorithms.group_filter import DropReport, Fate, fates, positive_quota, quality_penalty, select
from agentrl.config.schema.algorithm import SelectionSection
from agentrl.types import Group, TrajectoryRef
from tests.summaries import short_summary


def trajectory(
    index: int,
    reward: float | None,
    *,
    calls: int = 1,
    failed: int = 0,
    tags: int = 1,
    turns: int = 2,
    prompt_id: str = "p",
) -> TrajectoryRef:
    summary = short_summary(
        prompt_id,
        index,
        reward=reward,
        num_turns=turns,
        num_tool_calls=calls,
        num_failed_tool_calls=failed,
        num_answer_tags=tags,
    )
    return TrajectoryRef(summary=summary, ref=None)


def group(rewards: Sequence[float | None], prompt_id: str = "p") -> Group:
    trajectories = [trajectory(index, reward, prompt_id=prompt_id) for index, reward in enumerate(rewards)]
    return Group(prompt_id=prompt_id, trajectories=trajectories)


def indices(selected: Group) -> list[int]:
    return [trajectory.summary.sample_index for trajectory in selected.trajectories]


def test_each_trajectory_has_the_fate_that_selection_gave_it():
    mixed, solved = group([1.0, 0.0, None, 1.0, 0.0], "mixed"), group([1.0, 1.0], "solved")
    unsolved, small = group([0.0, 0.0], "unsolved"), group([1.0, None], "small")
    groups, selection = [mixed, solved, unsolved, small], SelectionSection(method="resample_on_correct", keep=2)
    by_fate = fates(groups, select(groups, selection, seed=0)[0], selection)
    assert {fate: len(names) for fate, names in by_fate.items()} == {
        Fate.TRAINED: 2,
        Fate.NOT_DRAWN: 2,
        Fate.UNSCORED: 2,
        Fate.ALL_SOLVED: 2,
        Fate.NONE_SOLVED: 2,
        Fate.TOO_SMALL: 1,
    }
    assert sum(map(len, by_fate.values())) == sum(len(item.trajectories) for item in groups)


def test_an_unscored_trajectory_is_left_out_and_the_others_are_kept():
    kept, report = select([group([1.0, None, 0.0])], SelectionSection(method="all"), seed=0)
    assert indices(kept[0]) == [0, 2]
    assert report == DropReport(trajectories_dropped_unscored=1)


def test_a_group_of_several_with_one_that_was_scored_is_dropped_and_counted():
    kept, report = select([group([1.0, None, None])], SelectionSection(drop_equal_reward=False), seed=0)
    assert kept == []
    assert report == DropReport(groups_dropped_too_small=1, trajectories_dropped_unscored=2)


def test_a_group_without_a_scored_trajectory_is_dropped():
    kept, report = select([group([None])], SelectionSection(drop_equal_reward=False), seed=0)
    assert kept == []
    assert report.groups_dropped_too_small == 1


def test_equal_reward_groups_are_dropped_and_counted_by_cause():
    groups = [group([1.0, 1.0], "solved"), group([0.0, 0.0], "hopeless"), group([1.0, 0.0], "useful")]
    kept, report = select(groups, SelectionSection(keep=16), seed=0)
    assert [selected.prompt_id for selected in kept] == ["useful"]
    assert report == DropReport(groups_dropped_all_solved=1, groups_dropped_none_solved=1)
    assert report.groups_dropped == 2
    assert report.metrics()["rollout/groups_dropped_all_solved"] == 1.0
    assert report.metrics()["rollout/groups_dropped_none_solved"] == 1.0
    assert report.describe_empty_batch() == "1 of 2 all solved, 1 of 2 none solved"


def test_equal_reward_groups_stay_if_drop_equal_reward_is_off():
    kept, report = select([group([1.0] * 4)], SelectionSection(keep=2, drop_equal_reward=False), seed=0)
    assert len(kept[0].trajectories) == 2
    assert report == DropReport(trajectories_dropped_not_drawn=2)


def test_a_singleton_group_is_counted():
    selection = SelectionSection(method="all", drop_equal_reward=False)
    kept, report = select([group([1.0])], selection, seed=0)
    assert len(kept) == 1
    assert report == DropReport(groups_singleton=1)


def test_plain_grpo_keeps_every_scored_trajectory():
    kept, _ = select([group([1.0, 0.0] * 20)], SelectionSection(method="all", keep=16), seed=0)
    assert len(kept[0].trajectories) == 40


@pytest.mark.parametrize("minimum", [0, 1, 2])
def test_quotas_add_up_for_every_size(minimum: int):
    for num_all in range(1, 21):
        for keep in range(1, 21):
            selection = SelectionSection(keep=keep, min_positives=minimum, min_negatives=minimum)
            for num_positives in range(num_all + 1):
                num_negatives = num_all - num_positives
                kept_positives = positive_quota(num_positives, num_negatives, selection)
                kept_negatives = min(keep, num_all) - kept_positives
                assert 0 <= kept_positives <= num_positives
                assert 0 <= kept_negatives <= num_negatives
                if min(keep, num_all) >= 2 * max(1, minimum):
                    assert kept_positives >= min(num_positives, max(1, minimum))
                    assert kept_negatives >= min(num_negatives, max(1, minimum))


def test_quotas_follow_the_proportion():
    selection = SelectionSection(keep=16)
    assert positive_quota(8, 24, selection) == 4
    assert positive_quota(5, 27, selection) == 3  # 2.5, halves up
    assert positive_quota(1, 31, selection) == 1
    assert positive_quota(31, 1, selection) == 15


def test_selected_groups_have_exactly_the_configured_size():
    for num_positives in range(1, 32):
        rewards = [1.0] * num_positives + [0.0] * (32 - num_positives)
        kept, report = select([group(rewards)], SelectionSection(keep=16), seed=1)
        assert len(kept[0].trajectories) == 16
        assert len(set(indices(kept[0]))) == 16
        assert report.trajectories_dropped_not_drawn == 16


def test_quality_penalty_matches_the_paper():
    assert quality_penalty(trajectory(0, 1.0, calls=0).summary) == 0.5
    assert quality_penalty(trajectory(0, 1.0, calls=4, failed=1).summary) == 0.25
    assert quality_penalty(trajectory(0, 1.0, tags=0).summary) == 1.0
    assert quality_penalty(trajectory(0, 1.0, tags=2, turns=4).summary) == 0.25
    assert quality_penalty(trajectory(0, 1.0, tags=9, turns=2).summary) == 1.0
    assert quality_penalty(trajectory(0, 1.0, calls=2, failed=2, tags=0).summary) == 2.0


def test_positives_are_drawn_in_inverse_proportion_to_their_penalty():
    # Penalties 0 and 1, so weights 10 and 1/1.1: the flawless one is drawn first with probability 11/12.
    trajectories = [trajectory(0, 1.0), trajectory(1, 1.0, tags=0), trajectory(2, 0.0), trajectory(3, 0.0)]
    selection = SelectionSection(keep=2)
    drawn = Counter(
        indices(select([Group(prompt_id=f"p{seed}", trajectories=trajectories)], selection, seed=0)[0][0])[0]
        for seed in range(4000)
    )
    assert drawn[0] / 4000 == pytest.approx(11 / 12, abs=0.015)


def test_negatives_are_drawn_uniformly():
    trajectories = [
        trajectory(0, 1.0),
        trajectory(1, 1.0),
        trajectory(2, 0.0),
        trajectory(3, 0.0, calls=4, failed=4, tags=0),
    ]
    drawn = Counter(
        indices(select([Group(prompt_id="p", trajectories=trajectories)], SelectionSection(keep=2), seed=seed)[0][0])[1]
        for seed in range(4000)
    )
    assert drawn[2] / 4000 == pytest.approx(0.5, abs=0.03)


def test_the_sorted_variant_takes_the_best_positives_and_the_first_negatives():
    trajectories = [
        trajectory(0, 1.0, tags=0),
        trajectory(1, 0.0),
        trajectory(2, 1.0),
        trajectory(3, 1.0, calls=0),
        trajectory(4, 0.0),
        trajectory(5, 0.0),
        trajectory(6, 1.0, calls=4, failed=1),
        trajectory(7, 0.0),
    ]
    kept, _ = select(
        [Group(prompt_id="p", trajectories=trajectories)], SelectionSection(keep=4, positives="sorted"), seed=0
    )
    assert indices(kept[0]) == [1, 2, 4, 6]


def test_the_order_of_arrival_does_not_change_the_draw():
    groups = [group([1.0, 0.0] * 8, f"p{number}") for number in range(4)]
    shuffled = [
        Group(prompt_id=each.prompt_id, trajectories=random.Random(1).sample(list(each.trajectories), 16))
        for each in reversed(groups)
    ]
    selection = SelectionSection(keep=6)
    first = {kept.prompt_id: indices(kept) for kept in select(groups, selection, seed=3)[0]}
    second = {kept.prompt_id: indices(kept) for kept in select(shuffled, selection, seed=3)[0]}
    other_seed = {kept.prompt_id: indices(kept) for kept in select(groups, selection, seed=4)[0]}
    assert first == second
    assert first != other_seed


def test_reports_of_two_rounds_add_up():
    total = DropReport(groups_dropped_all_solved=1, trajectories_dropped_unscored=2) + DropReport(
        groups_dropped_all_solved=3
    )
    assert total == DropReport(groups_dropped_all_solved=4, trajectories_dropped_unscored=2)


def test_groups_are_dropped_and_resampled_by_a_metric_of_the_reward():
    shaped = [(0.9, 1.0), (0.7, 1.0), (0.2, 0.0), (0.1, 0.0)]
    trajectories = [
        TrajectoryRef(summary=short_summary("p", index, reward=r, reward_metrics={"accuracy": a}), ref=None)
        for index, (r, a) in enumerate(shaped)
    ]
    selection = SelectionSection(keep=2, metric="accuracy")
    kept, _ = select([Group(prompt_id="p", trajectories=trajectories)], selection, seed=0)
    assert sorted(t.summary.reward_metrics["accuracy"] for t in kept[0].trajectories) == [0.0, 1.0]
    dropped, report = select([Group(prompt_id="p", trajectories=trajectories[:2])], selection, seed=0)
    assert (dropped, report.groups_dropped_all_solved) == ([], 1)


@pytest.mark.parametrize("solved_at", [0.0, 1.0])
def test_solved_at_sets_which_rewards_count_as_solved(solved_at: float):
    rewards = [solved_at, solved_at - 1.0]
    selection = SelectionSection(keep=1, solved_at=solved_at, min_negatives=0)
    kept, report = select([group([solved_at] * 2)], selection, seed=0)
    assert (kept, report.groups_dropped_all_solved) == ([], 1)
    kept, report = select([group([solved_at - 1.0] * 2)], selection, seed=0)
    assert (kept, report.groups_dropped_none_solved) == ([], 1)
    assert len(select([group(rewards)], SelectionSection(keep=2, solved_at=solved_at), seed=0)[0]) == 1


def test_a_masked_trajectory_is_excluded_from_the_group_and_its_size():
    masked = TrajectoryRef(summary=short_summary("p", 2, reward=0.0, is_masked=True), ref=None)
    whole = Group(prompt_id="p", trajectories=[trajectory(0, 1.0), trajectory(1, 0.0), masked])
    kept, report = select([whole], SelectionSection(method="all"), seed=0)
    assert indices(kept[0]) == [0, 1]
    assert report == DropReport(trajectories_dropped_masked=1)
    equal = Group(prompt_id="p", trajectories=[trajectory(0, 1.0), trajectory(1, 1.0), masked])
    assert select([equal], SelectionSection(method="all"), seed=0) == (
        [],
        DropReport(groups_dropped_all_solved=1, trajectories_dropped_masked=1),
    )
