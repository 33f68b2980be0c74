"""Statistics of an evaluation: pass@k, maj@k, means with confidence intervals, and a paired test; pure functions.

Samples of one prompt resemble each other, so prompts are the independent units: every standard error is clustered by prompt.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy

CONFIDENCE = 0.95
"""Coverage of every interval."""
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
_MAX_FLOAT_SAMPLES = 1000
"""Number of samples up to which every binomial coefficient is a finite float."""
_MAX_EXACT_WORK = 10**9
"""Additions of the exact paired test, about a second."""
_MAX_ENUMERATED = 16
"""Number of differences of which all signs are tried."""
_NUM_RANDOM_SIGNS = 100_000
_RELATIVE_ERROR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, its standard error, and its 95 % confidence interval.

    Example: 30 of 40 prompts solved, one sample each: `Estimate(mean=0.75, stderr=0.069, low=0.59, high=0.86,
    num_prompts=40)`.
    """

    mean: float
    stderr: float
    """NaN for fewer than two prompts, as are `low` and `high`."""
    low: float
    high: float
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One sample in a majority vote."""

    answer: str | None
    """None: no answer, so no vote."""
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Result of a paired test: the probability of a difference as large as the observed one if the two sides are equal."""

    p_value: float
    is_exact: bool
    """False: estimated from random signs."""


def sample_sizes(num_samples: int) -> Iterator[int]:
    """Yield the k of pass@k and maj@k: 2, 4, 8, ... and all samples."""
    k = 2
    while k < num_samples:
        yield k
        k *= 2
    if num_samples > 1:
        yield num_samples


def pass_chance(num_samples: int, num_solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one prompt: `1 - C(n - c, k) / C(n, k)` (arXiv:2107.03374, eq. 1)."""
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


def majority_chance(votes: Sequence[Vote], k: int) -> float:
    """Return the unbiased estimate of maj@k for one prompt: the share of right majorities among all k-subsets of its samples.

    The majority vote is self-consistency (arXiv:2203.11171). Ties are split evenly between the tied answers. All right
    answers are one answer however they are written; a wrong one shares a class with its equals in text only. A subset without
    any answer is wrong.
    """
    right_texts = {vote.answer for vote in votes if vote.is_right and vote.answer is not None}
    right = [vote for vote in votes if vote.answer in right_texts]
    wrong: dict[str, int] = {}
    for vote in votes:
        if vote.answer is not None and vote.answer not in right_texts:
            wrong[vote.answer] = wrong.get(vote.answer, 0) + 1
    if not right:
        return 0.0
    share = sum(vote.is_right for vote in right) / len(right)  # below 1 where the reward judges more than the answer
    others = tuple(sorted(wrong.values()))
    return share * _win_chance(len(right), others, len(votes) - len(right) - sum(others), k)


@lru_cache(maxsize=4096)
def _win_chance(size: int, others: tuple[int, ...], num_blank: int, k: int) -> float:
    """Return the chance that the class of `size` wins the vote of k samples drawn from all, exactly.

    For every number of drawn votes of that class, `ways[r, t]` counts the draws of r other samples in which no class has more
    votes and t classes have as many.
    """
    num_samples = size + sum(others) + num_blank
    dtype = float if num_samples <= _MAX_FLOAT_SAMPLES else object
    total: float = 0
    for votes in range(1, min(size, k) + 1):
        rest = k - votes
        if rest > num_blank + sum(min(other, votes) for other in others):
            continue
        ways = numpy.zeros((rest + 1, rest // votes + 1), dtype=dtype)
        ways[:, 0] = [math.comb(num_blank, drawn) for drawn in range(rest + 1)]
        for other in others:
            before, ways = ways, ways.copy()
            for drawn in range(1, min(other, votes - 1, rest) + 1):
                ways[drawn:] += math.comb(other, drawn) * before[: rest + 1 - drawn]
            if votes <= min(other, rest):
                ways[votes:, 1:] += math.comb(other, votes) * before[: rest + 1 - votes, :-1]
        wins = sum(ways[rest, ties] / (1 + ties) for ties in range(ways.shape[1]))
        total += math.comb(size, votes) * wins
    return float(total / math.comb(num_samples, k))


def estimate(values: Sequence[Sequence[float]], *, is_share: bool, num_samples: int | None = None) -> Estimate:
    """Estimate the mean of values that are clustered by prompt.

    The standard error is the clustered one of arXiv:2411.00640 (sec. 2.2) with the factor P / (P - 1) for P prompts (Cameron
    and Miller, 2015). The interval is Student's with P - 1 degrees of freedom. With `is_share`, where all values lie in
    0..1, it is Wilson's (1927) for the effective number of samples (Dean and Pagano, 2015), which stays in 0..1 and has a
    width where every prompt is solved, or none.

    Args:
        values: the samples of each prompt; prompts without any are left out.
        is_share: see above.
        num_samples: the samples behind `values`, which limit the effective number; absent: the number of values.
    """
    clusters = [cluster for cluster in values if cluster]
    num_prompts, num_values = len(clusters), sum(map(len, clusters))
    mean = math.fsum(value for cluster in clusters for value in cluster) / num_values if num_values else math.nan
    if num_prompts < 2:
        return Estimate(mean=mean, stderr=math.nan, low=math.nan, high=math.nan, num_prompts=num_prompts)
    sum_of_squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in clusters)
    stderr = math.sqrt(sum_of_squares * num_prompts / (num_prompts - 1)) / num_values
    quantile = student_quantile(num_prompts - 1)
    low, high = mean - quantile * stderr, mean + quantile * stderr
    if is_share:
        spread = max(0.0, mean * (1.0 - mean))
        size = (
            min(num_samples or num_values, spread / stderr**2 if stderr > 0 else math.inf)
            if spread > 0
            else num_prompts
        )
        low, high = _wilson(mean, spread, size, quantile)
    return Estimate(mean=mean, stderr=stderr, low=low, high=high, num_prompts=num_prompts)


def _wilson(mean: float, spread: float, size: float, quantile: float) -> tuple[float, float]:
    scale = 1.0 + quantile**2 / size
    centre = (mean + quantile**2 / (2 * size)) / scale
    half = quantile * math.sqrt(spread / size + (quantile / (2 * size)) ** 2) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantile(degrees: int) -> float:
    """Return the quantile of Student's t for a two-sided 95 % interval.

    Closed forms for one and two degrees of freedom, else the expansion 26.7.5 of Abramowitz and Stegun (error below 0.2 %).
    """
    level = 0.5 + CONFIDENCE / 2
    if degrees == 1:
        return math.tan(math.pi * (level - 0.5))
    if degrees == 2:
        return (2 * level - 1) / math.sqrt(2 * level * (1 - level))
    z, v = _Z, degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def paired_test(differences: Sequence[float], *, unit: float | None = None) -> PairedTest:
    """Test the hypothesis that the sign of every difference is random, two-sided, by their sum (Fisher, 1935).

    With differences of -1, 0 and 1 it is the sign test, and McNemar's exact one. The distribution is exact for up to 16
    differences, and where all are multiples of `unit`; else 100,000 random signs with a fixed seed stand for it, the
    observed ones included (Phipson and Smyth, 2010).
    """
    observed = [difference for difference in differences if difference != 0]
    if not observed:
        return PairedTest(p_value=1.0, is_exact=True)
    if len(observed) <= _MAX_ENUMERATED:
        return PairedTest(p_value=_enumerated_p_value(observed), is_exact=True)
    if unit is not None:
        steps = [round(difference / unit) for difference in observed]
        is_whole = all(
            math.isclose(step * unit, difference, rel_tol=_RELATIVE_ERROR)
            for step, difference in zip(steps, observed, strict=True)
        )
        if is_whole and len(steps) * sum(map(abs, steps)) <= _MAX_EXACT_WORK:
            return PairedTest(p_value=_exact_p_value(steps), is_exact=True)
    return PairedTest(p_value=_sampled_p_value(observed), is_exact=False)


def _enumerated_p_value(differences: Sequence[float]) -> float:
    sums = numpy.zeros(1)
    for difference in differences:
        sums = numpy.concatenate([sums - difference, sums + difference])
    limit = abs(math.fsum(differences)) * (1.0 - _RELATIVE_ERROR)
    return float((numpy.abs(sums) >= limit).mean())


def _exact_p_value(steps: Sequence[int]) -> float:
    """Return the share of sign choices whose sum is at least as far from 0, from the distribution of all sums."""
    divisor = math.gcd(*steps)
    sizes = [abs(step) // divisor for step in steps]
    chances = numpy.zeros(sum(sizes) + 1)
    """Chance that the positive differences add up to the index."""
    chances[0] = 1.0
    end = 1
    for size in sizes:
        before = chances[:end] / 2
        chances[:end] = before
        chances[size : end + size] += before
        end += size
    sums = 2 * numpy.arange(end) - sum(sizes)
    return min(1.0, float(chances[numpy.abs(sums) >= abs(sum(steps) // divisor)].sum()))


def _sampled_p_value(differences: Sequence[float]) -> float:
    sizes = numpy.abs(numpy.asarray(differences))
    limit = abs(math.fsum(differences)) * (1.0 - _RELATIVE_ERROR)
    generator = numpy.random.default_rng(0)
    num_extreme, num_left = 1, _NUM_RANDOM_SIGNS
    block = max(1, 10**7 // len(sizes))
    while num_left > 0:
        count = min(block, num_left)
        signs = generator.integers(0, 2, size=(count, len(sizes)), dtype=numpy.int8) * 2 - 1
        num_extreme += int((numpy.abs(signs @ sizes) >= limit).sum())
        num_left -= count
    return num_extreme / (_NUM_RANDOM_SIGNS + 1)
