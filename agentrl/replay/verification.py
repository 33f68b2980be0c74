"""Checks of a record against itself: is every trajectory whole, and do its parts agree?"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.replay.recorded_run import RecordedStep
from agentrl.types import Termination, Trajectory

_WITHOUT_REWARD = (Termination.INFRA_ERROR, Termination.DATA_ERROR)


def problems_of_step(recorded: RecordedStep, tokens: ChatTokens | None) -> Iterator[str]:
    """Yield a line for each contradiction in a step; with `tokens`, texts are compared with what was sampled."""
    counts = Counter(trajectory.trajectory_id for trajectory in recorded.trajectories)
    for name, count in counts.items():
        if count > 1:
            yield f"{name}: recorded {count} times"
        if recorded.fates and name not in recorded.fates:
            yield f"{name}: no recorded use in the update"
    for name in recorded.fates.keys() - counts.keys():
        yield f"{name}: used in the update, and not recorded"
    for trajectory in recorded.trajectories:
        for problem in problems_of_trajectory(trajectory, tokens):
            yield f"{trajectory.trajectory_id}: {problem}"
        if trajectory.prompt_id not in recorded.prompts:
            yield f"{trajectory.trajectory_id}: its prompt is not recorded"


def problems_of_trajectory(trajectory: Trajectory, tokens: ChatTokens | None) -> Iterator[str]:
    """Yield each contradiction between the fields of a trajectory."""
    mask, num_tokens = trajectory.response_mask, len(trajectory.token_ids)
    if not num_tokens == len(mask) == len(trajectory.rollout_logprobs):
        yield f"{num_tokens} tokens, {len(mask)} entries in its mask, {len(trajectory.rollout_logprobs)} log-probabilities"
        return
    if any(mask[: trajectory.num_prompt_tokens]):
        yield "a token of the prompt counts as sampled"
    finite = [int(math.isfinite(logprob)) for logprob in trajectory.rollout_logprobs]
    if finite != mask:
        yield "a sampled token has no log-probability, or another one has"
    starts = [start for start, _ in trajectory.version_spans]
    if starts != sorted(starts) or (1 in mask and (not starts or starts[0] > mask.index(1))):
        yield "its version spans do not cover what was sampled"
    if (trajectory.reward is None) != (trajectory.termination in _WITHOUT_REWARD):
        yield f"reward {trajectory.reward} and an end by `{trajectory.termination}`"
    if trajectory.span is not None and trajectory.span.duration_s < 0:
        yield "it ended before it started"
    if tokens is not None and not trajectory.row_starts:
        yield from _problems_of_texts(trajectory, tokens)


def _problems_of_texts(trajectory: Trajectory, tokens: ChatTokens) -> Iterator[str]:
    sampled = _sampled_spans(trajectory)
    if len(sampled) > len(trajectory.turns):
        yield f"{len(sampled)} sampled spans, and {len(trajectory.turns)} turns"
        return
    spoken = [turn for turn in trajectory.turns if turn.text]
    for number, (span, turn) in enumerate(zip(sampled, spoken, strict=False), start=1):
        if not tokens.decode(span).startswith(turn.text):
            yield f"turn {number}: its text is not what its tokens say"


def _sampled_spans(trajectory: Trajectory) -> list[Sequence[int]]:
    pairs = zip(trajectory.response_mask, trajectory.token_ids, strict=True)
    return [[token for _, token in run] for is_sampled, run in groupby(pairs, key=lambda pair: pair[0]) if is_sampled]
