"""Metrics of validation and evaluation: total accuracy, pass@k, and accuracy by data set."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentrl.config.algorithm_schema import SelectionSection
from agentrl.observability.pass_at_k import pass_at_k
from agentrl.observability.rollout_metrics import accuracy, summarise_validation
from agentrl.types import TrajectorySummary


def validation_metrics(
    summaries: Sequence[TrajectorySummary],
    selection: SelectionSection,
    *,
    samples_per_prompt: int,
    data_sets: Mapping[str, str],
) -> dict[str, float]:
    """Return the `validation/...` metrics; several data sets have their own accuracy.

    Args:
        summaries: trajectories of the held-out prompts.
        selection: definition of solved.
        samples_per_prompt: number of trajectories per prompt.
        data_sets: data set names, keyed by prompt id.
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
