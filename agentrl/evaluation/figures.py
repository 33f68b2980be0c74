"""The figures of an evaluation: accuracy, pass@k and maj@k with intervals, over all prompts, per data set and per category."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.data.columns import category_of
from agentrl.evaluation.record import EvaluationRecord, Sample
from agentrl.observability.estimates import (
    Estimate,
    Vote,
    estimate,
    majority_chance,
    pass_chance,
    sample_sizes,
)
from agentrl.observability.reports.outcome import is_solved, outcome

ALL_PROMPTS = "all prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a set of prompts."""

    name: str
    """`all prompts`, `data set gsm8k` or `level 3`."""
    num_prompts: int
    """Prompts with at least one scored trajectory."""
    num_samples: int
    """Scored trajectories."""
    accuracy: Estimate
    """Mean outcome."""
    pass_at: dict[int, Estimate]
    """Chance that at least one of k samples is solved, keyed by k."""
    majority_at: dict[int, Estimate]
    """Chance that the majority vote of k samples is right, keyed by k; empty where the reward has no notion of an answer."""

    def rows(self) -> list[tuple[str, Estimate]]:
        """Return all estimates with their names."""
        named = [("accuracy", self.accuracy)]
        named += [(f"pass@{k}", value) for k, value in self.pass_at.items()]
        return named + [(f"maj@{k}", value) for k, value in self.majority_at.items()]


def number(value: float) -> str:
    """Return a figure for a table; a dash if it does not exist."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def interval(value: Estimate, *, sign: str = "") -> str:
    """Return the interval of an estimate for a table; a dash for fewer than two prompts. `sign="+"` shows every sign."""
    return "-" if math.isnan(value.low) else f"{value.low:{sign}.3f} to {value.high:{sign}.3f}"


def figures_of(
    record: EvaluationRecord,
    selection: SelectionSection,
    *,
    samples_per_prompt: int,
    category_column: str | None,
) -> list[Figures]:
    """Return the figures of all prompts, then of each data set if there are several, then of each category."""
    by_name: defaultdict[str, list[Sample]] = defaultdict(list)
    data_sets = {prompt.data_set for prompt in record.prompts.values()}
    for sample in record.samples:
        prompt = record.prompts[sample.summary.prompt_id]
        if len(data_sets) > 1:
            by_name[f"data set {prompt.data_set}"].append(sample)
        if category_column is not None:
            category = category_of(prompt, category_column)
            by_name[f"{category_column} {'(none)' if category is None else category}"].append(sample)
    subsets = sorted(by_name, key=lambda name: (not name.startswith("data set "), name))
    return [
        _figures(name, samples, selection, sizes=[*sample_sizes(samples_per_prompt)], votes=record.has_answers)
        for name, samples in [(ALL_PROMPTS, record.samples), *((name, by_name[name]) for name in subsets)]
    ]


def outcomes_by_prompt(samples: Iterable[Sample], selection: SelectionSection) -> dict[str, list[float]]:
    """Return the outcomes of the scored trajectories, keyed by prompt id."""
    outcomes: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if (value := outcome(sample.summary, selection)) is not None:
            outcomes[sample.summary.prompt_id].append(value)
    return outcomes


def _figures(
    name: str, samples: Sequence[Sample], selection: SelectionSection, *, sizes: Sequence[int], votes: bool
) -> Figures:
    outcomes = outcomes_by_prompt(samples, selection)
    ballots: defaultdict[str, list[Vote]] = defaultdict(list)
    for sample in samples:
        if sample.summary.reward is not None:
            is_right = is_solved(sample.summary, selection)
            ballots[sample.summary.prompt_id].append(Vote(answer=sample.answer, is_right=is_right))
    num_samples = sum(map(len, ballots.values()))

    def chance(chances: list[list[float]]) -> Estimate:
        return estimate(chances, is_share=True, num_samples=num_samples)

    def enough(k: int) -> list[list[Vote]]:
        return [ballot for ballot in ballots.values() if len(ballot) >= k]

    return Figures(
        name=name,
        num_prompts=len(ballots),
        num_samples=num_samples,
        accuracy=estimate(
            [*outcomes.values()], is_share=all(0 <= value <= 1 for values in outcomes.values() for value in values)
        ),
        pass_at={
            k: chance([[pass_chance(len(ballot), sum(v.is_right for v in ballot), k)] for ballot in enough(k)])
            for k in sizes
        },
        majority_at={k: chance([[majority_chance(ballot, k)] for ballot in enough(k)]) for k in sizes} if votes else {},
    )
