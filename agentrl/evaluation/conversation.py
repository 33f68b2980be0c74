"""Choice of the examples in the report of an evaluation."""

from collections.abc import Sequence

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.evaluation.record import EvaluationRecord, Sample
from agentrl.observability.reports.outcome import is_solved
from agentrl.pages.conversation import Conversation, conversation_of
from agentrl.types import Termination


def examples_of(record: EvaluationRecord, selection: SelectionSection, *, num_each: int = 3) -> list[Conversation]:
    """Return some right and some wrong trajectories of different prompts, spread over the prompts.

    Wrong ones that came to their own end are preferred to those that were cut short.
    """
    right: dict[str, Sample] = {}
    wrong: dict[str, Sample] = {}
    for sample in record.samples:
        if sample.summary.reward is None:
            continue
        chosen, name = (right if is_solved(sample.summary, selection) else wrong), sample.summary.prompt_id
        if name not in chosen or (_came_to_its_end(sample) and not _came_to_its_end(chosen[name])):
            chosen[name] = sample
    ended = [sample for sample in wrong.values() if _came_to_its_end(sample)]
    picked = [*_spread([*right.values()], num_each), *_spread(ended or [*wrong.values()], num_each)]
    return conversations(record, picked, selection)


def conversations(
    record: EvaluationRecord, samples: Sequence[Sample], selection: SelectionSection
) -> list[Conversation]:
    """Return the conversations of scored samples, in their order."""
    whole = record.trajectories({sample.summary.trajectory_id for sample in samples})
    return [
        conversation_of(
            record.prompts[sample.summary.prompt_id],
            whole[sample.summary.trajectory_id],
            is_right=is_solved(sample.summary, selection),
        )
        for sample in samples
    ]


def _came_to_its_end(sample: Sample) -> bool:
    return sample.summary.termination is Termination.ANSWERED


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    count = min(count, len(samples))
    return [samples[index * len(samples) // count] for index in range(count)]
