"""The report of an evaluation: the facts behind `report.md` and `report.html`."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from agentrl.config.schema.run import RunConfig
from agentrl.evaluation.conversation import examples_of
from agentrl.evaluation.figures import Figures, interval, number
from agentrl.evaluation.record import EvaluationRecord
from agentrl.observability.estimates import Estimate
from agentrl.observability.reports.failure import describe_failures
from agentrl.pages.conversation import Conversation
from agentrl.pages.page import Table
from agentrl.pages.tool_table import tool_table
from agentrl.types import Termination, TrajectorySummary

_OF_THE_WORKER = ("tokenise_s", "engine_queue_s", "generate_s", "judge_queue_s", "tool_s", "reward_queue_s", "reward_s")
"""Parts of a trajectory's time that are in its record."""
METHOD = (
    "Samples of one prompt resemble each other: standard errors are clustered by prompt (arXiv:2411.00640). Intervals are "
    "Wilson's for the effective number of samples, or Student's for rewards outside of 0 to 1. pass@k is the unbiased "
    "estimate of arXiv:2107.03374; maj@k is the share of right majorities over all k-subsets, ties split."
)
_CUT_SHORT = {Termination.MAX_TURNS, Termination.MAX_RESPONSE_TOKENS, Termination.TIMEOUT}
_LOST = {
    Termination.INFRA_ERROR: "the infrastructure failed; not counted",
    Termination.DATA_ERROR: "the row cannot be scored; not counted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a report shows, as text and figures; both pages are made from it."""

    title: str
    facts: list[tuple[str, str]]
    figures: list[Figures]
    """All prompts first."""
    subsets: Table
    """Main figures of each data set and category; empty where there is one set of prompts."""
    notes: list[str]
    """Facts to know before the figures, such as what is left out."""
    endings: Table
    failures: list[str]
    lengths: Table
    tools: Table
    times: Table
    examples: list[Conversation]


def report_of(
    config: RunConfig, record: EvaluationRecord, figures: Sequence[Figures], result: Mapping[str, Any]
) -> Report:
    """Return the report of a finished evaluation; `result` is its `result.json`."""
    summaries = record.summaries
    scored = [summary for summary in summaries if summary.reward is not None]
    return Report(
        title=f"Evaluation of {Path(result['model']).name}",
        facts=_facts(config, result),
        figures=[*figures],
        subsets=_subsets(figures[1:]),
        notes=_notes(config, record, result),
        endings=_endings(summaries),
        failures=describe_failures(summaries),
        lengths=_lengths(scored),
        tools=tool_table(scored),
        times=_times(scored, result),
        examples=examples_of(record, config.algorithm.selection),
    )


def _facts(config: RunConfig, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    rollout, validation, selection = config.rollout, config.validation, config.algorithm.selection
    temperature = rollout.temperature if validation.temperature is None else validation.temperature
    outcome = f"`{selection.metric}`" if selection.metric else "the reward"
    return [
        ("model", result["model"]),
        ("data", ", ".join(config.data.validation_files)),
        ("prompts", f"{result['num_prompts']:,}, samples of each: {result['samples_per_prompt']}"),
        (
            "sampling",
            f"temperature {temperature:g}, top_p {validation.top_p:g}, top_k {validation.top_k}, seed {config.run.seed}",
        ),
        ("limits", f"{rollout.max_response_tokens:,} tokens after the prompt, {rollout.max_turns} turns"),
        ("reward", f"{config.reward.label}; solved: {outcome} is at least {selection.solved_at:g}"),
        ("engine", f"{rollout.engine}, {rollout.num_engines} of them"),
        ("versions", ", ".join(f"{name} {number}" for name, number in result["versions"].items())),
        ("finished", result["finished_at"]),
    ]


def _notes(config: RunConfig, record: EvaluationRecord, result: Mapping[str, Any]) -> list[str]:
    counts = Counter(summary.termination for summary in record.summaries)
    notes = []
    if lost := counts[Termination.INFRA_ERROR]:
        notes.append(
            f"{lost} of {len(record.samples)} trajectories were lost to the infrastructure. They are in no figure; the same "
            "command tries them again."
        )
    if unscored := counts[Termination.DATA_ERROR]:
        notes.append(f"{unscored} trajectories have data that cannot be scored. They are in no figure.")
    if (left_out := result["num_prompts"] - len({s.prompt_id for s in record.summaries if s.reward is not None})) > 0:
        notes.append(f"{left_out} prompts have no scored trajectory.")
    if not record.has_answers and config.validation.samples_per_prompt > 1:
        notes.append(f"maj@k is left out: the reward {config.reward.label} has no notion of a final answer to vote on.")
    return notes


def _subsets(figures: Sequence[Figures]) -> Table:
    columns = ("prompts", "count", "accuracy", "95 % interval")
    for name, _ in _of_all_samples(figures[0]) if figures else []:
        columns += (name, "95 % interval")
    rows = []
    for subset in figures:
        values = [subset.accuracy, *(value for _, value in _of_all_samples(subset))]
        cells = [text for value in values for text in (number(value.mean), interval(value))]
        rows.append((subset.name, f"{subset.num_prompts:,}", *cells))
    return Table(columns=columns, rows=rows)


def _of_all_samples(figures: Figures) -> list[tuple[str, Estimate]]:
    """Return pass@k and maj@k of the largest k."""
    last = [
        (kind, [*values.items()][-1:]) for kind, values in (("pass", figures.pass_at), ("maj", figures.majority_at))
    ]
    return [(f"{kind}@{k}", value) for kind, items in last for k, value in items]


def _endings(summaries: Sequence[TrajectorySummary]) -> Table:
    counts = Counter(summary.termination for summary in summaries)
    rows = []
    for termination in Termination:
        if count := counts[termination]:
            meaning = _LOST.get(termination, "cut short" if termination in _CUT_SHORT else "came to its own end")
            rows.append((f"{termination}", f"{count:,}", f"{count / len(summaries):.1%}", meaning))
    retries = sum(summary.num_retries for summary in summaries)
    if retries:
        rows.append(("fresh episodes after a failure", f"{retries:,}", "", "failures below"))
    return Table(columns=("ended by", "trajectories", "share", "meaning"), rows=rows, num_texts=1)


def _lengths(scored: Sequence[TrajectorySummary]) -> Table:
    quantities: dict[str, Callable[[TrajectorySummary], int]] = {
        "sampled tokens": lambda summary: summary.num_response_tokens,
        "tokens with prompt and observations": lambda summary: summary.num_tokens,
        "turns": lambda summary: summary.num_turns,
        "tool calls": lambda summary: summary.num_tool_calls,
    }
    rows = []
    for name, quantity in quantities.items():
        values = [quantity(summary) for summary in scored]
        if values:
            median, high = numpy.percentile(values, [50, 95])
            numbers = (f"{numpy.mean(values):,.1f}", f"{median:,.0f}", f"{high:,.0f}", f"{max(values):,}")
            rows.append((name, *numbers))
    return Table(columns=("per trajectory", "mean", "median", "95 %", "largest"), rows=rows)


def _times(scored: Sequence[TrajectorySummary], result: Mapping[str, Any]) -> Table:
    total = math.fsum(getattr(summary.times, name) for summary in scored for name in _OF_THE_WORKER)
    rows = []
    for name in _OF_THE_WORKER:
        spent = math.fsum(getattr(summary.times, name) for summary in scored)
        if spent > 0:
            words = name.removesuffix("_s").replace("_", " ")
            rows.append((words, f"{spent / len(scored):,.2f}", f"{spent / total:.1%}"))
    seconds = result["wall_time_s"]
    rows.append((f"whole command without the start, {result['num_rolled_out']:,} trajectories", f"{seconds:,.1f}", ""))
    return Table(columns=("per trajectory", "seconds", "share"), rows=rows)
