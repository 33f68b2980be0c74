"""Estimates against definitions by enumeration, closed forms and printed tables."""

import itertools
import math
import random
import statistics

import pytest

from agentrl.observability.estimates import (
    Vote,
    estimate,
    majority_chance,
    paired_test,
    sample_sizes,
    student_quantile,
)


def votes(text: str, right: str = "r") -> list[Vote]:
    """One vote per character; `-` is no answer."""
    return [Vote(answer=None if letter == "-" else letter, is_right=letter == right) for letter in text]


def majority_by_subsets(text: str, k: int) -> float:
    def share(subset: tuple[str, ...]) -> float:
        counts = {letter: subset.count(letter) for letter in subset if letter != "-"}
        winners = [letter for letter, count in counts.items() if count == max(counts.values())]
        return winners.count("r") / len(winners) if winners else 0.0

    return statistics.mean(map(share, itertools.combinations(text, k)))


@pytest.mark.parametrize("text", ["rrrr", "aabb", "rab-", "rraabbc-", "rrraaab--", "r--------", "rraaaabbbb", "-----"])
def test_maj_at_k_is_the_share_of_right_majorities_over_all_subsets_with_ties_split(text: str):
    for k in range(1, len(text) + 1):
        assert majority_chance(votes(text), k) == pytest.approx(majority_by_subsets(text, k)), k


def test_random_votes_agree_with_the_enumeration():
    generator = random.Random(0)
    for _ in range(60):
        text = "".join(generator.choices("rrabc-", k=generator.randint(1, 9)))
        k = generator.randint(1, len(text))
        assert majority_chance(votes(text), k) == pytest.approx(majority_by_subsets(text, k)), (text, k)


def test_right_answers_in_two_spellings_are_one_answer():
    written = [Vote(answer=text, is_right=text != "3") for text in ("1/2", "0.5", "3", "3", "1/2")]
    assert majority_chance(written, 5) == 1.0


def test_an_answer_that_was_right_but_not_rewarded_counts_by_its_share():
    written = [Vote(answer="5", is_right=True), Vote(answer="5", is_right=False)]
    assert majority_chance(written, 2) == 0.5


def test_a_thousand_samples_do_not_overflow():
    assert majority_chance(votes("r" * 700 + "a" * 800), 3) == pytest.approx(0.45, abs=0.02)
    assert majority_chance(votes("r" * 600 + "a" * 400), 500) == pytest.approx(1.0, abs=1e-6)


def test_the_sizes_are_powers_of_two_and_all_samples():
    assert [list(sample_sizes(n)) for n in (1, 2, 6, 8)] == [[], [2], [2, 4, 6], [2, 4, 8]]


def test_wilsons_interval_of_independent_prompts_is_the_printed_one():
    """Reference: Wilson's formula with Student's quantile for 39 degrees of freedom, 2.0227."""
    solved = estimate([[1.0]] * 30 + [[0.0]] * 10, is_share=True)
    p, n, t = 0.75, 39.0, 2.0227  # the unbiased variance makes 40 prompts worth 39
    centre = (p + t**2 / (2 * n)) / (1 + t**2 / n)
    half = t / (1 + t**2 / n) * math.sqrt(p * (1 - p) / n + t**2 / (4 * n**2))
    assert (solved.mean, solved.stderr) == (0.75, pytest.approx(math.sqrt(p * (1 - p) / 39)))
    assert (solved.low, solved.high) == (pytest.approx(centre - half, abs=1e-4), pytest.approx(centre + half, abs=1e-4))


def test_all_prompts_solved_leaves_room_for_doubt():
    """Reference: Wilson's lower end of n of n, `n / (n + t^2)`, with 2.0930 for 19 degrees of freedom."""
    perfect = estimate([[1.0] * 8] * 20, is_share=True)
    assert (perfect.mean, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(20 / (20 + 2.0930**2), abs=1e-4)


def test_samples_that_agree_add_nothing_and_samples_that_differ_narrow_the_interval():
    alone = estimate([[float(n < 6)] for n in range(12)], is_share=True)
    repeated = estimate([[float(n < 6)] * 10 for n in range(12)], is_share=True)
    assert (repeated.low, repeated.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    mixed = estimate([[0.0, 1.0] * 4 + [float(n % 2)] for n in range(12)], is_share=True)
    assert mixed.high - mixed.low < 0.5 * (alone.high - alone.low)


def test_rewards_outside_of_0_to_1_have_students_interval():
    values = [-1.0, 0.5, 2.0, 3.5]
    result = estimate([[value] for value in values], is_share=False)
    half = 3.1824 * statistics.stdev(values) / 2  # Student's table, 3 degrees of freedom
    assert (result.mean - result.low, result.high - result.mean) == (pytest.approx(half, rel=2e-3),) * 2


@pytest.mark.parametrize(
    ("degrees", "table"), [(1, 12.706), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10, 2.2281), (100, 1.9840)]
)
def test_students_quantile_is_that_of_the_table(degrees: int, table: float):
    assert student_quantile(degrees) == pytest.approx(table, rel=2e-3)


def test_few_prompts_have_no_interval():
    assert math.isnan(estimate([], is_share=True).mean)
    single = estimate([[1.0, 0.0], []], is_share=True)
    assert (single.mean, single.num_prompts) == (0.5, 1)
    assert math.isnan(single.low)


def test_the_interval_of_clustered_prompts_covers_the_truth_in_95_of_100_data_sets():
    """40 prompts, 4 samples each, solved with chances of Beta(0.3, 0.05): accuracy 0.857."""
    generator, covered, narrow = random.Random(1), 0, 0
    for _ in range(400):
        chances = [generator.betavariate(0.3, 0.05) for _ in range(40)]
        samples = [[float(generator.random() < chance) for _ in range(4)] for chance in chances]
        ours = estimate(samples, is_share=True)
        covered += ours.low <= 0.3 / 0.35 <= ours.high
        flat = [value for cluster in samples for value in cluster]
        stderr = statistics.stdev(flat) / math.sqrt(len(flat))
        narrow += abs(statistics.mean(flat) - 0.3 / 0.35) <= 1.96 * stderr
    assert 0.92 <= covered / 400 <= 0.98
    assert narrow / 400 < 0.8  # the interval that takes samples for independent


def p_value_by_signs(differences: list[float]) -> float:
    limit = abs(sum(differences)) - 1e-9
    signs = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = (sum(s * d for s, d in zip(row, differences, strict=True)) for row in signs)
    return sum(abs(value) >= limit for value in sums) / len(signs)


def test_the_exact_paired_test_is_the_enumeration_of_all_signs():
    for differences in ([0.25, -0.5, 0.75, 0.0, 1.0], [0.25] * 6, [-0.75, 0.5, 0.5, -0.25, 0.25, 1.0, 0.25]):
        result = paired_test(differences, unit=0.25)
        assert result.is_exact
        assert result.p_value == pytest.approx(p_value_by_signs([d for d in differences if d]))


def test_with_one_sample_it_is_the_sign_test():
    """Reference: the binomial tail, 14 wins of 16 prompts that differ."""
    differences = [1.0] * 14 + [-1.0] * 2 + [0.0] * 30
    tail = 2 * sum(math.comb(16, n) for n in range(3)) / 2**16
    assert paired_test(differences, unit=1.0).p_value == pytest.approx(tail)


def test_other_rewards_are_tested_by_random_signs_with_the_same_result_every_time():
    differences = [0.313, -0.2, 0.77, 0.11, 0.5, -0.04, 0.9, 0.3]
    assert paired_test(differences).is_exact
    assert paired_test(differences).p_value == pytest.approx(p_value_by_signs(differences))
    many = [0.25 + 0.01 * math.sin(n) for n in range(14)] + [-0.25 + 0.01 * math.cos(n) for n in range(6)]
    result = paired_test(many, unit=0.25)
    assert not result.is_exact
    assert paired_test(many) == result
    assert result.p_value == pytest.approx(
        paired_test([math.copysign(0.25, d) for d in many], unit=0.25).p_value, abs=0.06
    )


def test_thousands_of_prompts_are_tested_exactly_and_no_difference_is_no_evidence():
    differences = [0.125] * 2600 + [-0.125] * 2400
    normal = math.erfc(199 / math.sqrt(5000) / math.sqrt(2))  # with the correction for continuity
    assert paired_test(differences, unit=0.125).p_value == pytest.approx(normal, rel=0.01)
    assert paired_test([0.0, 0.0]).p_value == 1.0
