"""Two evaluations of the same prompts, compared prompt by prompt."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl.config.plain import flatten
from agentrl.config.schema.algorithm import SelectionSection
from agentrl.config.schema.reward import RewardSection
from agentrl.errors import ConfigError
from agentrl.evaluation.conversation import conversations
from agentrl.evaluation.figures import interval, number, outcomes_by_prompt
from agentrl.evaluation.record import EvaluationRecord, Sample, read_evaluation
from agentrl.observability.estimates import CONFIDENCE, Estimate, PairedTest, estimate, paired_test
from agentrl.observability.reports.outcome import outcome
from agentrl.pages.conversation import Conversation
from agentrl.types import Prompt

COMPARISON_METHOD = (
    "The interval is Student's for the paired differences of the prompts (arXiv:2411.00640, sec. 4.2); the test asks how often "
    "random signs of these differences have as large a sum (Fisher's randomisation test, two-sided)."
)
_MAX_UNIT = 5_000
"""Largest denominator of the differences that are tested exactly."""
_NUM_NAMED = 3
_NOT_COMPARED = {"run.dir"}
_DECIDES_OUTCOMES = ("reward.", "algorithm.selection.metric", "algorithm.selection.solved_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two evaluations."""

    folder: Path
    settings: dict[str, Any]
    """Its config, flat."""
    selection: SelectionSection
    record: EvaluationRecord
    is_finished: bool

    @property
    def model(self) -> str:
        """Name of the policy."""
        return self.settings.get("rollout.openai.model") or self.settings["model.path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDifference:
    """Mean outcomes of one prompt in both evaluations."""

    prompt: Prompt
    first: float
    second: float

    @property
    def difference(self) -> float:
        """Second minus first."""
        return self.second - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison; differences are those of the second evaluation from the first."""

    sides: tuple[Side, Side]
    warnings: list[str]
    changes: list[tuple[str, str, str]]
    """Key, first and second value of every key that differs."""
    means: tuple[Estimate, Estimate]
    """Means of the prompts' mean outcomes, over the prompts that both have scored."""
    difference: Estimate
    test: PairedTest
    prompts: list[PromptDifference]
    """Largest difference first."""

    @property
    def num_won(self) -> int:
        """Prompts in which the second evaluation is better."""
        return sum(prompt.difference > 0 for prompt in self.prompts)

    @property
    def num_lost(self) -> int:
        """Prompts in which it is worse."""
        return sum(prompt.difference < 0 for prompt in self.prompts)


def read_side(folder: Path) -> Side:
    """Return the evaluation in a run folder.

    Raises:
        ConfigError: there is none, or nothing of it is scored.
    """
    config = folder / "config.yaml"
    if not config.is_file():
        raise ConfigError(f"{folder}: no `config.yaml`, so no evaluation. Name the `run.dir` of an evaluation.")
    try:
        tree = yaml.safe_load(config.read_text())
        reward = RewardSection.model_validate(tree["reward"])
        selection = SelectionSection.model_validate(tree["algorithm"]["selection"])
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{config}: not the config of an evaluation: {error}. Name another folder.") from error
    if any(folder.glob("trajectories/step_*.atr")):
        raise ConfigError(
            f"{folder}: a training run, not an evaluation. Evaluate its policy, and name the folder of that."
        )
    record = read_evaluation(folder, reward)
    if all(summary.reward is None for summary in record.summaries):
        raise ConfigError(f"{folder}: no scored trajectory of an evaluation. Let the evaluation run first.")
    return Side(
        folder=folder,
        settings=flatten(tree),
        selection=selection,
        record=record,
        is_finished=(folder / "result.json").is_file(),
    )


def compare(first: Side, second: Side) -> Comparison:
    """Pair the prompts of two evaluations, and test the difference of their mean outcomes.

    The interval is that of the paired differences (arXiv:2411.00640, sec. 4.2).

    Raises:
        ConfigError: a prompt has another text or reference in the other evaluation, or they share no scored prompt.
    """
    shared = first.record.prompts.keys() & second.record.prompts.keys()
    _refuse_other_texts(first, second, sorted(shared))
    outcomes = [outcomes_by_prompt(side.record.samples, side.selection) for side in (first, second)]
    scored = sorted(shared & outcomes[0].keys() & outcomes[1].keys())
    if not scored:
        raise ConfigError(f"{first.folder} and {second.folder} share no scored prompt, so they cannot be compared.")
    prompts = [
        PromptDifference(
            prompt=first.record.prompts[name],
            first=statistics.fmean(outcomes[0][name]),
            second=statistics.fmean(outcomes[1][name]),
        )
        for name in scored
    ]
    values = [value for side in outcomes for name in scored for value in side[name]]
    num_samples = [sum(len(side[name]) for name in scored) for side in outcomes]
    is_share = all(0 <= value <= 1 for value in values)
    unit = _unit([len(side[name]) for side in outcomes for name in scored]) if set(values) <= {0.0, 1.0} else None
    changes = _changes(first, second)
    return Comparison(
        sides=(first, second),
        warnings=_warnings(first, second, changes=changes, num_compared=len(scored)),
        changes=changes,
        means=(
            estimate([[prompt.first] for prompt in prompts], is_share=is_share, num_samples=num_samples[0]),
            estimate([[prompt.second] for prompt in prompts], is_share=is_share, num_samples=num_samples[1]),
        ),
        difference=estimate([[prompt.difference] for prompt in prompts], is_share=False),
        test=paired_test([prompt.difference for prompt in prompts], unit=unit),
        prompts=sorted(prompts, key=lambda prompt: (-abs(prompt.difference), prompt.prompt.prompt_id)),
    )


def result_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the means, their difference and the counts of prompts as rows of a table."""
    first, second = comparison.means
    num_equal = len(comparison.prompts) - comparison.num_won - comparison.num_lost
    return [
        ("A", number(first.mean), interval(first)),
        ("B", number(second.mean), interval(second)),
        ("B - A", f"{comparison.difference.mean:+.3f}", interval(comparison.difference, sign="+")),
        ("prompts that B won", f"{comparison.num_won:,}", ""),
        ("prompts that B lost", f"{comparison.num_lost:,}", ""),
        ("prompts that are equal", f"{num_equal:,}", ""),
    ]


def describe_test(comparison: Comparison) -> str:
    """Return the outcome of the test in one sentence."""
    test, mean = comparison.test, comparison.difference.mean
    kind = "exact" if test.is_exact else "100,000 random signs"
    if test.p_value >= 1 - CONFIDENCE:
        return f"No difference is shown: p = {test.p_value:.3g} (paired test over {len(comparison.prompts)} prompts, {kind})."
    better = "B is better than A" if mean > 0 else "A is better than B"
    return f"{better}: p = {test.p_value:.3g} (paired test over {len(comparison.prompts)} prompts, {kind})."


def conversations_of(comparison: Comparison, *, num_prompts: int) -> list[tuple[Conversation, Conversation]]:
    """Return a conversation of either side for the prompts that differ most: of the better its best, of the worse its worst."""
    differing = [prompt for prompt in comparison.prompts if prompt.difference != 0][:num_prompts]
    pairs = []
    for side, is_second in zip(comparison.sides, (False, True), strict=True):
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in side.record.samples:
            if sample.summary.reward is not None:
                samples[sample.summary.prompt_id].append(sample)

        def rank(sample: Sample, side: Side = side) -> float:
            return outcome(sample.summary, side.selection) or 0.0

        chosen = [
            (max if (prompt.difference > 0) is is_second else min)(samples[prompt.prompt.prompt_id], key=rank)
            for prompt in differing
        ]
        pairs.append(conversations(side.record, chosen, side.selection))
    return [*zip(*pairs, strict=True)]


def _refuse_other_texts(first: Side, second: Side, prompt_ids: Sequence[str]) -> None:
    def text(side: Side, name: str) -> Any:
        prompt = side.record.prompts[name]
        return prompt.messages, prompt.answer

    changed = [name for name in prompt_ids if text(first, name) != text(second, name)]
    if changed:
        raise ConfigError(
            f"{first.folder} and {second.folder}: {len(changed)} prompts have one id and two texts or references "
            f"({_named(changed)}). Compare evaluations of the same data."
        )


def _warnings(first: Side, second: Side, *, changes: Sequence[tuple[str, str, str]], num_compared: int) -> list[str]:
    warnings = []
    for side, other in ((first, second), (second, first)):
        if not side.is_finished:
            warnings.append(f"{side.folder} is not finished: {len(side.record.samples)} trajectories so far.")
        if alone := sorted(side.record.prompts.keys() - other.record.prompts.keys()):
            warnings.append(f"{len(alone)} prompts are in {side.folder} only ({_named(alone)}), and not compared.")
    shared = len(first.record.prompts.keys() & second.record.prompts.keys())
    if num_compared < shared:
        warnings.append(f"{shared - num_compared} prompts have no scored trajectory on one side, and are not compared.")
    if deciding := [name for name, _, _ in changes if name.startswith(_DECIDES_OUTCOMES)]:
        warnings.append(f"The outcomes mean different things: {_named(deciding)} differ.")
    return warnings


def _changes(first: Side, second: Side) -> list[tuple[str, str, str]]:
    before, now = first.settings, second.settings
    return [
        (name, f"{before.get(name)}", f"{now.get(name)}")
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and name not in _NOT_COMPARED
    ]


def _unit(sizes: Sequence[int]) -> float | None:
    """Return a number of which the difference of two shares of these many samples is a multiple; None if it is tiny."""
    multiple = 1
    for size in set(sizes):
        multiple = math.lcm(multiple, size)
    return 1.0 / multiple if multiple <= _MAX_UNIT else None


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_NUM_NAMED])
    return f"{shown} and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else shown
