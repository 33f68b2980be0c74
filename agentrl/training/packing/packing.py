"""Packing of token sequences into micro-batches, with the next-token shift (here and nowhere else).

There is no padding, and common prefixes can be computed once. Only positions whose *next* token was sampled by the policy are
scored; everything per token (targets, advantages, log-probabilities) exists only for those.

Letters in shapes: N scored tokens of a micro-batch, B bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.packing.families import Family, Packing, balanced_bins, families_of
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.row_layout import SharedPrefix, row_layout
from agentrl.training.packing.sequence_parallel import SequenceGroup
from agentrl.training.packing.sequences import TokenInputs, TokenisedExample, TokenSequence, rows_of
from agentrl.types import Trajectory

_Batch = TypeVar("_Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass of an update: tokens, and the loss's inputs for each scored token."""

    tokens: PackedTokens
    advantages_N: Tensor
    """Advantages; for the critic, returns."""
    rollout_logprobs_N: Tensor
    trajectory_N: Tensor
    """Number of each token's trajectory, from 0."""
    num_trajectories: int
    reference_logprobs_N: Tensor | None = None
    old_logprobs_N: Tensor | None = None
    old_values_N: Tensor | None = None
    """`old`: before the update."""

    def to(self, device: torch.device, sequence: SequenceGroup | None) -> "MicroBatch":
        """Return a copy on `device` (`PackedTokens.to`); the loss's inputs are those of the whole row."""
        moved = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, tokens=self.tokens.to(device, sequence), **moved)


def pack_tokens(sequences: Sequence[TokenSequence], families: Sequence[Family] | None = None) -> PackedTokens:
    """Pack the sequences of `families` into one row, with scored tokens in the order of `members_of`.

    Without families all sequences are packed, and nothing is shared.

    Raises:
        ValueError: a sequence of fewer than two tokens, a mask of another length than its ids, or a row without a prompt.
    """
    if families is None:
        families = [Family(members=(index,), num_shared=0) for index in range(len(sequences))]
    for sequence in (sequences[member] for member in members_of(families)):
        if len(sequence.token_ids) < 2 or len(sequence.response_mask) != len(sequence.token_ids):
            raise ValueError(
                f"pack_tokens: a sequence of {len(sequence.token_ids)} ids with {len(sequence.response_mask)} mask "
                "entries; at least two ids and one mask entry per id are needed"
            )
        if any(sequence.response_mask[row.start] for row in rows_of(sequence)[1:]):
            raise ValueError("pack_tokens: a row begins with a sampled token; it needs a prompt")
    row = _Row()
    for family in families:
        row.append([sequences[member] for member in family.members], family.num_shared)
    return PackedTokens(
        token_ids_T=torch.tensor(row.token_ids, dtype=torch.long),
        position_ids_T=torch.tensor(row.position_ids, dtype=torch.long),
        uses_T=torch.tensor(row.uses, dtype=torch.float32),
        layout=row_layout(row.lengths, row.prefixes),
        scored_N=torch.tensor(row.scored, dtype=torch.long),
        targets_N=torch.tensor(row.targets, dtype=torch.long),
        num_tokens=sum(row.uses),
        num_scored=len(row.scored),
        experts_TB=row.experts(),
    )


def members_of(families: Sequence[Family]) -> list[int]:
    """Return the sequences of a row, in the order of their scored tokens."""
    return [member for family in families for member in family.members]


class _Row:
    """A row that grows family by family."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.uses: list[int] = []
        self.scored: list[int] = []
        self.targets: list[int] = []
        self.lengths: list[int] = []
        self.prefixes: list[SharedPrefix] = []
        self._experts: list[NDArray[np.uint8] | None] = []

    def append(self, sequences: Sequence[TokenSequence], shared: int) -> None:
        """Add sequences that agree in their first `shared` tokens."""
        start = len(self.token_ids)
        if shared:
            self._segment(sequences[0], range(shared), uses=len(sequences))
        for sequence in sequences:
            for row in rows_of(sequence):
                first = max(shared, row.start)
                offset = len(self.token_ids) - first
                # The last token of a row predicts nothing.
                self._segment(sequence, range(first, row.stop - 1), row_start=row.start)
                for position in row[:-1]:
                    if sequence.response_mask[position + 1]:
                        self.scored.append(position + (start if position < shared else offset))
                        self.targets.append(sequence.token_ids[position + 1])
        if shared and start + shared < len(self.token_ids):
            self.prefixes.append(SharedPrefix(start=start, end=start + shared, suffix_end=len(self.token_ids)))

    def experts(self) -> Tensor | None:
        """Return `[T, B]`; None if a sequence has none."""
        known = [part for part in self._experts if part is not None]
        return torch.from_numpy(np.concatenate(known)) if known and len(known) == len(self._experts) else None

    def _segment(self, sequence: TokenSequence, positions: range, *, row_start: int = 0, uses: int = 1) -> None:
        self.token_ids += sequence.token_ids[positions.start : positions.stop]
        self.uses += [uses] * len(positions)
        self.position_ids += [position - row_start for position in positions]
        if not positions:
            return
        self.lengths.append(len(positions))
        experts = None
        if sequence.experts:
            experts = np.frombuffer(sequence.experts, np.uint8).reshape(len(sequence.token_ids) - 1, -1)
            experts = experts[positions.start : positions.stop]
        self._experts.append(experts)


def plan_rows(sequences: Sequence[TokenSequence], packing: Packing, *, min_rows: int = 0) -> list[list[Family]]:
    """Divide sequences over packed rows of balanced cost, each for `pack_tokens`.

    `min_rows` is the least number of rows, if there are enough sequences; the number that other ranks have, say.
    """
    families = families_of(sequences, max_tokens=packing.max_tokens, share_prefixes=packing.share_prefixes)
    return balanced_bins(families, sequences, packing, min_bins=min_rows)


def pack_examples(examples: Sequence[TokenSequence], packing: Packing) -> list[PackedTokens]:
    """Pack demonstrations into rows of balanced cost."""
    return [pack_tokens(examples, row) for row in plan_rows(examples, packing)]


def pack_trajectories(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | Tensor],
    inputs: Sequence[TokenInputs] | None = None,
    *,
    packing: Packing,
    min_rows: int = 0,
) -> list[MicroBatch]:
    """Pack trajectories into micro-batches (`plan_rows`); each has one advantage for all of its sampled tokens or one for each.

    Raises ValueError for a sampled token without a finite rollout log-probability.
    """
    inputs = inputs or [TokenInputs()] * len(trajectories)
    batches = []
    for row in plan_rows(trajectories, packing, min_rows=min_rows):
        members = members_of(row)
        given = [inputs[member] for member in members]
        logprobs = [logprob for member in members for logprob in _scored_logprobs(trajectories[member])]
        counts = [sum(trajectories[member].response_mask[1:]) for member in members]
        spread = [
            torch.as_tensor(advantages[member], dtype=torch.float32).expand(count)
            for member, count in zip(members, counts, strict=True)
        ]
        batches.append(
            MicroBatch(
                tokens=pack_tokens(trajectories, row),
                advantages_N=torch.cat(spread),
                rollout_logprobs_N=torch.tensor(logprobs, dtype=torch.float32),
                trajectory_N=torch.arange(len(members)).repeat_interleave(torch.tensor(counts)),
                num_trajectories=len(members),
                reference_logprobs_N=_concatenated([each.ref_logprobs for each in given]),
                old_logprobs_N=_concatenated([each.old_logprobs for each in given]),
                old_values_N=_concatenated([each.values for each in given]),
            )
        )
    return batches


def empty_tokens() -> PackedTokens:
    """Return a row without scored tokens, for a rank that must join the collectives of others."""
    filler = pack_tokens([TokenisedExample(token_ids=[0, 0], response_mask=[0, 0])])
    return replace(filler, uses_T=torch.zeros_like(filler.uses_T), num_tokens=0)


def empty_micro_batch() -> MicroBatch:
    """Return a micro-batch that adds nothing to loss or gradient."""
    nothing = torch.empty(0, dtype=torch.float32)
    return MicroBatch(
        tokens=empty_tokens(),
        advantages_N=nothing,
        rollout_logprobs_N=nothing,
        trajectory_N=nothing.long(),
        num_trajectories=0,
        reference_logprobs_N=nothing,
        old_logprobs_N=nothing,
        old_values_N=nothing,
    )


def fill_up(batches: list[_Batch], filler: _Batch, count: int) -> list[_Batch]:
    """Return `batches` padded with fillers to `count`: collectives need the same number of passes on every rank."""
    return batches + [filler] * (count - len(batches))


def _concatenated(parts: Sequence[NDArray[np.float32] | None]) -> Tensor | None:
    """Return all parts as one tensor; None if they are None, which they are for all trajectories or for none."""
    present = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(present)) if present else None


def _scored_logprobs(trajectory: Trajectory) -> list[float]:
    pairs = zip(trajectory.rollout_logprobs[1:], trajectory.response_mask[1:], strict=True)
    logprobs = [logprob for logprob, sampled in pairs if sampled]
    for index, logprob in enumerate(logprobs):
        if not math.isfinite(logprob):
            raise ValueError(
                f"trajectory `{trajectory.trajectory_id}`: sampled token {index} has rollout log-probability {logprob}; the "
                "engine must give one for every sampled token"
            )
    return logprobs
