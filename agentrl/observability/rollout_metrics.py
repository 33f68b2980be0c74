"""Metrics of a step or a validation, from the summaries of its trajectories.

Trajectories that the infrastructure or the data failed are counted (`infra_errors`, `data_errors`) and left out of every mean
and share. A mean over nothing is NaN.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.observability.estimates import estimate, pass_chance, sample_sizes
from agentrl.observability.reports.failure import count_failures
from agentrl.observability.reports.outcome import is_solved, outcome
from agentrl.types import Termination, TrajectorySummary


def summarise(summaries: Sequence[TrajectorySummary], selection: SelectionSection) -> dict[str, float]:
    """Return the `rollout/...` and `reward/...` metrics of one step's trajectories; `selection` defines solved.

    `tool_error_share_in_positives` is the share of failed calls in solved trajectories; arXiv:2508.20722 reports 10 to 15 %
    under plain GRPO.
    """
    positives = [summary for summary in _scored(summaries) if is_solved(summary, selection)]
    return {
        "rollout/tool_error_share_in_positives": _failed_call_share(positives),
        **_stage_metrics("rollout", summaries, selection),
        **reward_breakdown("reward", summaries),
    }


def summarise_validation(summaries: Sequence[TrajectorySummary], selection: SelectionSection) -> dict[str, float]:
    """Return the `validation/...` metrics of the held-out prompts' trajectories.

    `accuracy` is the mean reward, or the mean of `selection.metric` if set; `accuracy_stderr` its standard error.
    """
    mean, stderr = accuracy(summaries, selection)
    return {
        "validation/accuracy": mean,
        "validation/accuracy_stderr": stderr,
        **_stage_metrics("validation", summaries, selection),
        **reward_breakdown("validation/reward", summaries),
    }


def validation_metrics(
    summaries: Sequence[TrajectorySummary],
    selection: SelectionSection,
    *,
    samples_per_prompt: int,
    data_sets: Mapping[str, str],
    categories: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Return the `validation/...` metrics of the held-out prompts; `selection` defines solved.

    `data_sets` and `categories` have names keyed by prompt id; each of several data sets has its own accuracy, and so has
    each category.
    """
    metrics = summarise_validation(summaries, selection)
    metrics |= pass_at_k(summaries, selection, samples_per_prompt=samples_per_prompt)
    by_name: defaultdict[str, list[TrajectorySummary]] = defaultdict(list)
    for names in (data_sets if len(set(data_sets.values())) > 1 else {}, categories or {}):
        for summary in summaries:
            if summary.prompt_id in names:
                by_name[names[summary.prompt_id]].append(summary)
    for name in sorted(by_name):
        mean, stderr = accuracy(by_name[name], selection)
        metrics |= {f"validation/accuracy/{name}": mean, f"validation/accuracy_stderr/{name}": stderr}
    return metrics


def pass_at_k(
    summaries: Sequence[TrajectorySummary], selection: SelectionSection, *, samples_per_prompt: int
) -> dict[str, float]:
    """Return `validation/pass_at_<k>` and its standard error over prompts, for k of 2, 4, 8, ... and all samples.

    The mean of `pass_chance` over the prompts. `selection` defines solved. Samples without a reward are not among the n; a
    prompt with n < k is left out.
    """
    solved: defaultdict[str, list[bool]] = defaultdict(list)
    for summary in summaries:
        if summary.reward is not None:
            solved[summary.prompt_id].append(is_solved(summary, selection))
    metrics: dict[str, float] = {}
    for k in sample_sizes(samples_per_prompt):
        chances = [[pass_chance(len(s), sum(s), k)] for s in solved.values() if len(s) >= k]
        value = estimate(chances, is_share=True)
        metrics |= {f"validation/pass_at_{k}": value.mean, f"validation/pass_at_{k}_stderr": value.stderr}
    return metrics


def accuracy(summaries: Sequence[TrajectorySummary], selection: SelectionSection) -> tuple[float, float]:
    """Return the mean outcome of the trajectories that have one, and its standard error, clustered by prompt."""
    outcomes: defaultdict[str, list[float]] = defaultdict(list)
    for summary in _scored(summaries):
        outcomes[summary.prompt_id].append(_outcome(summary, selection))
    value = estimate([*outcomes.values()], is_share=False)
    return value.mean, value.stderr


def reward_breakdown(prefix: str, summaries: Sequence[TrajectorySummary]) -> dict[str, float]:
    """Return the mean of each entry of `reward_metrics`, over the trajectories that have it.

    Example: `{"reward/accuracy": 0.5, "reward/format": 0.9}`.
    """
    numbers: defaultdict[str, list[float]] = defaultdict(list)
    for summary in summaries:
        for name, number in summary.reward_metrics.items():
            numbers[name].append(number)
    return {f"{prefix}/{name}": _mean(values) for name, values in sorted(numbers.items())}


def _stage_metrics(stage: str, summaries: Sequence[TrajectorySummary], selection: SelectionSection) -> dict[str, float]:
    scored = _scored(summaries)
    wall_times_s = [summary.wall_time_s for summary in scored]
    metrics = {
        "reward_mean": _mean(summary.reward for summary in scored if summary.reward is not None),
        "solved_rate": _mean(is_solved(summary, selection) for summary in scored),
        "trajectories": float(len(summaries)),
        "infra_errors": float(sum(summary.termination is Termination.INFRA_ERROR for summary in summaries)),
        "data_errors": float(sum(summary.termination is Termination.DATA_ERROR for summary in summaries)),
        **count_failures(summaries),
        "retries": float(sum(summary.num_retries for summary in summaries)),
        "response_tokens_mean": _mean(summary.num_response_tokens for summary in scored),
        "response_tokens_max": float(max((summary.num_response_tokens for summary in scored), default=math.nan)),
        "turns_mean": _mean(summary.num_turns for summary in scored),
        "tool_calls_mean": _mean(summary.num_tool_calls for summary in scored),
        "tool_call_share": _mean(summary.num_tool_calls > 0 for summary in scored),
        "tool_success_rate": 1.0 - _failed_call_share(scored),
        "tool_results_cut": float(sum(summary.num_cut_tool_results for summary in scored)),
        "tool_time_s_mean": _mean(summary.tool_time_s for summary in scored),
        "answered_share": _termination_share(scored, Termination.ANSWERED),
        "truncated_share": _termination_share(scored, Termination.MAX_RESPONSE_TOKENS),
        "max_turns_share": _termination_share(scored, Termination.MAX_TURNS),
        "timeout_share": _termination_share(scored, Termination.TIMEOUT),
        "wall_time_s_mean": _mean(wall_times_s),
        "wall_time_s_p95": float(numpy.percentile(wall_times_s, 95)) if wall_times_s else math.nan,
    }
    return {f"{stage}/{name}": value for name, value in metrics.items()}


def _scored(summaries: Sequence[TrajectorySummary]) -> list[TrajectorySummary]:
    return [summary for summary in summaries if summary.reward is not None]


def _outcome(summary: TrajectorySummary, selection: SelectionSection) -> float:
    value = outcome(summary, selection)
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def _failed_call_share(summaries: Sequence[TrajectorySummary]) -> float:
    num_calls = sum(summary.num_tool_calls for summary in summaries)
    return sum(summary.num_failed_tool_calls for summary in summaries) / num_calls if num_calls else math.nan


def _termination_share(summaries: Sequence[TrajectorySummary], termination: Termination) -> float:
    return _mean(summary.termination is termination for summary in summaries)
