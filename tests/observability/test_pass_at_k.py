"""pass@k against its definition: the share of the k-subsets of the samples that hold a solved one."""

import itertools
import math
import statistics

import pytest

from agentrl.observability.rollout_metrics import pass_at_k
from agentrl.types import TrajectorySummary
from tests.summaries import SELECTION, short_summary


def summary(prompt_id: str, sample_index: int, reward: float | None) -> TrajectorySummary:
    return short_summary(prompt_id, sample_index, reward=reward)


def group(prompt_id: str, *rewards: float | None) -> list[TrajectorySummary]:
    return [summary(prompt_id, index, reward) for index, reward in enumerate(rewards)]


def by_subsets(rewards: tuple[float, ...], k: int) -> float:
    subsets = list(itertools.combinations(rewards, k))
    return sum(any(reward >= 1 for reward in subset) for subset in subsets) / len(subsets)


def test_it_is_the_share_of_subsets_with_a_solved_sample_averaged_over_prompts():
    rewards = {"a": (1.0, 0.0, 0.0, 0.5, 0.0), "b": (0.0,) * 5, "c": (1.0, 1.0, 1.0, 1.0, 0.0)}
    summaries = [summary for prompt_id, given in rewards.items() for summary in group(prompt_id, *given)]
    metrics = pass_at_k(summaries, SELECTION, samples_per_prompt=5)
    assert set(metrics) == {f"validation/pass_at_{k}{end}" for k in (2, 4, 5) for end in ("", "_stderr")}
    for k in (2, 4, 5):
        chances = [by_subsets(given, k) for given in rewards.values()]
        assert metrics[f"validation/pass_at_{k}"] == pytest.approx(statistics.mean(chances))
        assert metrics[f"validation/pass_at_{k}_stderr"] == pytest.approx(statistics.stdev(chances) / math.sqrt(3))


def test_one_sample_per_prompt_gives_none():
    assert pass_at_k(group("a", 1.0), SELECTION, samples_per_prompt=1) == {}


def test_failed_infrastructure_is_left_out_and_so_is_a_prompt_with_too_few_samples():
    summaries = [*group("a", 1.0, 0.0, None, None), *group("b", 0.0, 0.0, 0.0, 0.0)]
    metrics = pass_at_k(summaries, SELECTION, samples_per_prompt=4)
    assert metrics["validation/pass_at_2"] == pytest.approx((1.0 + 0.0) / 2)
    assert metrics["validation/pass_at_4"] == 0.0
    assert math.isnan(metrics["validation/pass_at_4_stderr"])
