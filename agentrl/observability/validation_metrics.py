"""Metrics of validation and evaluation: total accuracy, pass@k, and accuracy by data set."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.observability.reports.outcome import is_solved
from agentrl.observability.rollout_metrics import accuracy, summarise_validation
from agentrl.types import TrajectorySummary


def validation_metrics(
    summaries: Sequence[TrajectorySummary],
    selection: SelectionSection,
    *,
    samples_per_prompt: int,
    data_sets: Mapping[str, str],
) -> dict[str, float]:
    """Return the `validation/...` metrics of the held-out prompts; `selection` defines solved.

    `data_sets` has names keyed by prompt id; each of several has its own accuracy.
    """
    metrics = summarise_validation(summaries, selection)
    metrics |= pass_at_k(summaries, selection, samples_per_prompt=samples_per_prompt)
    names = sorted(set(data_sets.values()))
    if len(names) < 2:
        return metrics
    by_name: defaultdict[str, list[TrajectorySummary]] = defaultdict(list)
    for summary in summaries:
        by_name[data_sets[summary.prompt_id]].append(summary)
    for name in names:
        mean, stderr = accuracy(by_name[name], selection)
        metrics |= {f"validation/accuracy/{name}": mean, f"validation/accuracy_stderr/{name}": stderr}
    return metrics


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
