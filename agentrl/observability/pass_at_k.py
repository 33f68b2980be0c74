"""pass@k: the chance that at least one of k samples of a prompt solves it."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from agentrl.config.algorithm_schema import SelectionSection
from agentrl.observability.outcome import is_solved
from agentrl.types import TrajectorySummary


def pass_at_k(
    summaries: Sequence[TrajectorySummary], selection: SelectionSection, *, samples_per_prompt: int
) -> dict[str, float]:
    """Return `validation/pass_at_<k>` and its standard error over prompts, for k of 2, 4, 8, ... and all samples.

    The unbiased estimator of arXiv:2107.03374 (`1 - C(n - c, k) / C(n, k)` for c solved of n samples), averaged over the
    prompts. `selection` defines solved. Samples without a reward are not among the n; a prompt with n < k is left out.
    """
    solved: defaultdict[str, list[bool]] = defaultdict(list)
    for summary in summaries:
        if summary.reward is not None:
            solved[summary.prompt_id].append(is_solved(summary, selection))
    metrics: dict[str, float] = {}
    for k in _sizes(samples_per_prompt):
        chances = [_chance(len(samples), sum(samples), k) for samples in solved.values() if len(samples) >= k]
        deviation = statistics.stdev(chances) if len(chances) > 1 else math.nan
        metrics[f"validation/pass_at_{k}"] = statistics.fmean(chances) if chances else math.nan
        metrics[f"validation/pass_at_{k}_stderr"] = deviation / math.sqrt(max(1, len(chances)))
    return metrics


def _sizes(samples_per_prompt: int) -> Iterator[int]:
    k = 2
    while k < samples_per_prompt:
        yield k
        k *= 2
    if samples_per_prompt > 1:
        yield samples_per_prompt


def _chance(num_samples: int, num_solved: int, k: int) -> float:
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)
