"""From token sequences to packed micro-batches: binning, packing, and the next-token shift (here and nowhere else).

No padding token is computed. Only positions whose *next* token was sampled by the policy are scored, so everything
per token (targets, advantages, log-probabilities) is kept for those positions alone.

Letters in shapes: T packed input tokens of a micro-batch, N scored tokens among them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.packed_attention import Bucket, bucket_sequences
from agentrl.training.token_inputs import TokenInputs
from agentrl.types import Trajectory

_Batch = TypeVar("_Batch")


class TokenSequence(Protocol):
    """Anything with ids and a mask of the same length: a `Trajectory` or a `TokenisedExample`."""

    @property
    def token_ids(self) -> list[int]:
        """Prompt, observations and sampled tokens, in order."""
        ...

    @property
    def response_mask(self) -> list[int]:
        """1 for each id that the policy sampled or is to learn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedExample:
    """One demonstration. Example: `TokenisedExample(token_ids=[5, 6, 7, 8], response_mask=[0, 0, 1, 1])`."""

    token_ids: list[int]
    response_mask: list[int]
    """1 where the model is to learn the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """What one forward pass needs.

    Example: the example above, packed alone: `token_ids_T=[5, 6, 7]` (the last token predicts nothing), positions
    `[0, 1, 2]`, `scored_N=[1, 2]` and `targets_N=[7, 8]`.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    """Restart at 0 with each sequence."""
    buckets: tuple[Bucket, ...]
    scored_N: Tensor
    """Indices into T of the tokens whose successor was sampled."""
    targets_N: Tensor
    """That successor."""

    def to(self, device: torch.device) -> "PackedTokens":
        """Return a copy on `device`."""
        if device.type == "cpu":
            return self
        return PackedTokens(
            token_ids_T=self.token_ids_T.to(device),
            position_ids_T=self.position_ids_T.to(device),
            buckets=tuple(bucket.to(device) for bucket in self.buckets),
            scored_N=self.scored_N.to(device),
            targets_N=self.targets_N.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass of the policy update: tokens, and what the loss needs of each scored token."""

    tokens: PackedTokens
    advantages_N: Tensor
    rollout_logprobs_N: Tensor
    trajectory_N: Tensor
    """Number of the trajectory that each is of, from 0."""
    num_trajectories: int
    reference_logprobs_N: Tensor | None = None
    """Absent: nobody has computed them."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on `device`."""
        return MicroBatch(
            tokens=self.tokens.to(device),
            advantages_N=self.advantages_N.to(device),
            rollout_logprobs_N=self.rollout_logprobs_N.to(device),
            trajectory_N=self.trajectory_N.to(device),
            num_trajectories=self.num_trajectories,
            reference_logprobs_N=None if self.reference_logprobs_N is None else self.reference_logprobs_N.to(device),
        )


def bin_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Put sequences into as few bins of `max_tokens` as first-fit decreasing finds.

    Returns:
        Indices into `lengths`, longest first within a bin. A sequence above `max_tokens` has a bin of its own.
    """
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = next((b for b, room in enumerate(free) if lengths[index] <= room), None)
        if fitting is None:
            bins.append([])
            free.append(max_tokens)
            fitting = len(bins) - 1
        bins[fitting].append(index)
        free[fitting] -= lengths[index]
    return bins


def pack_tokens(sequences: Sequence[TokenSequence]) -> PackedTokens:
    """Pack sequences into one row, in their order.

    Raises:
        ValueError: a sequence of fewer than two tokens, or a mask of another length than its ids.
    """
    lengths = [len(sequence.token_ids) - 1 for sequence in sequences]
    for sequence, length in zip(sequences, lengths, strict=True):
        if length < 1 or len(sequence.response_mask) != length + 1:
            raise ValueError(
                f"pack_tokens: a sequence of {length + 1} ids with {len(sequence.response_mask)} mask entries; "
                "at least two ids and one mask entry per id are needed"
            )
    starts = [0, *accumulate(lengths)]
    scored = [
        start + position
        for sequence, start in zip(sequences, starts, strict=False)
        for position, sampled in enumerate(sequence.response_mask[1:])
        if sampled
    ]
    targets = [
        token
        for sequence in sequences
        for token, sampled in zip(sequence.token_ids[1:], sequence.response_mask[1:], strict=True)
        if sampled
    ]
    return PackedTokens(
        token_ids_T=torch.tensor(list(chain.from_iterable(s.token_ids[:-1] for s in sequences)), dtype=torch.long),
        position_ids_T=torch.cat([torch.arange(length) for length in lengths]),
        buckets=bucket_sequences(lengths),
        scored_N=torch.tensor(scored, dtype=torch.long),
        targets_N=torch.tensor(targets, dtype=torch.long),
    )


def pack_examples(examples: Sequence[TokenSequence], *, max_tokens: int) -> list[PackedTokens]:
    """Pack demonstrations into micro-batches of at most `max_tokens`."""
    bins = bin_by_tokens([len(example.token_ids) for example in examples], max_tokens)
    return [pack_tokens([examples[index] for index in members]) for members in bins]


def pack_trajectories(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    inputs: Sequence[TokenInputs] | None = None,
    *,
    max_tokens: int,
) -> list[MicroBatch]:
    """Pack trajectories, each with its advantage on all of its sampled tokens, into micro-batches of at most `max_tokens`.

    `inputs` are what other components have computed, one for each trajectory; absent: nothing.

    Raises:
        ValueError: a sampled token without a finite rollout log-probability.
    """
    inputs = inputs or [TokenInputs()] * len(trajectories)
    bins = bin_by_tokens([len(trajectory.token_ids) for trajectory in trajectories], max_tokens)
    return [
        _micro_batch([trajectories[i] for i in members], [advantages[i] for i in members], [inputs[i] for i in members])
        for members in bins
    ]


def empty_tokens() -> PackedTokens:
    """Return a row in which nothing is scored: what a rank computes while others still have work, to meet them."""
    return pack_tokens([TokenisedExample(token_ids=[0, 0], response_mask=[0, 0])])


def empty_micro_batch() -> MicroBatch:
    """Return `empty_tokens` as a micro-batch; it adds nothing to loss or gradient."""
    nothing = torch.empty(0, dtype=torch.float32)
    return MicroBatch(
        tokens=empty_tokens(),
        advantages_N=nothing,
        rollout_logprobs_N=nothing,
        trajectory_N=nothing.long(),
        num_trajectories=0,
        reference_logprobs_N=nothing,
    )


def fill_up(batches: list[_Batch], filler: _Batch, count: int) -> list[_Batch]:
    """Return `batches` followed by fillers up to `count`: collectives need as many passes on every rank."""
    return batches + [filler] * (count - len(batches))


def _micro_batch(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], inputs: Sequence[TokenInputs]
) -> MicroBatch:
    logprobs = [logprob for trajectory in trajectories for logprob in _scored_logprobs(trajectory)]
    counts = torch.tensor([sum(trajectory.response_mask[1:]) for trajectory in trajectories])
    return MicroBatch(
        tokens=pack_tokens(trajectories),
        advantages_N=torch.tensor(advantages, dtype=torch.float32).repeat_interleave(counts),
        rollout_logprobs_N=torch.tensor(logprobs, dtype=torch.float32),
        trajectory_N=torch.arange(len(trajectories)).repeat_interleave(counts),
        num_trajectories=len(trajectories),
        reference_logprobs_N=_concatenated([given.ref_logprobs for given in inputs]),
    )


def _concatenated(parts: Sequence[NDArray[np.float32] | None]) -> Tensor | None:
    """Return one row of all parts; None where they are absent, which is then the case for every trajectory of a step."""
    given = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(given)) if given else None


def _scored_logprobs(trajectory: Trajectory) -> list[float]:
    if len(trajectory.rollout_logprobs) != len(trajectory.token_ids):
        raise ValueError(
            f"trajectory `{trajectory.trajectory_id}`: {len(trajectory.rollout_logprobs)} rollout log-probabilities "
            f"for {len(trajectory.token_ids)} ids; the engine's reply was not recorded in full"
        )
    logprobs = [
        logprob
        for logprob, sampled in zip(trajectory.rollout_logprobs[1:], trajectory.response_mask[1:], strict=True)
        if sampled
    ]
    missing = next((index for index, logprob in enumerate(logprobs) if not math.isfinite(logprob)), None)
    if missing is not None:
        raise ValueError(
            f"trajectory `{trajectory.trajectory_id}`: sampled token {missing} has rollout log-probability "
            f"{logprobs[missing]}; the engine must give one for every sampled token"
        )
    return logprobs
