"""Packing of token sequences into micro-batches, with the next-token shift (here and nowhere else).

There is no padding, and common prefixes can be computed once. Only positions whose *next* token was sampled by the policy are
scored; everything per token (targets, advantages, log-probabilities) exists only for those.

Letters in shapes: T packed input tokens of a micro-batch, N scored tokens among them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.packing.families import Family, Packing, balanced_bins, families_of
from agentrl.training.packing.row_layout import RowLayout, SharedPrefix, row_layout
from agentrl.training.packing.sequence_parallel import RowPart, SequenceGroup
from agentrl.training.packing.sequences import TokenInputs, TokenisedExample, TokenSequence
from agentrl.types import Trajectory

_Batch = TypeVar("_Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """Input of a forward pass.

    Example: the demonstration above, packed alone: `token_ids_T=[5, 6, 7]` (the last token predicts nothing), positions
    `[0, 1, 2]`, `scored_N=[1, 2]` and `targets_N=[7, 8]`.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    """Positions within each sequence; a continuation goes on after its prefix."""
    uses_T: Tensor
    """Number of sequences that contain each token, float32; above 1 in a shared prefix."""
    layout: RowLayout
    scored_N: Tensor
    """Indices into T of the tokens whose successor was sampled, sequence by sequence. A token of a shared prefix occurs once
    for each sequence that was sampled from it."""
    targets_N: Tensor
    """Successors of the scored tokens."""
    experts_TB: Tensor | None = None
    """Bytes of each token's experts in the rollout (`Trajectory.experts`); in a shared prefix, those of its longest trajectory.
    None if unknown for any sequence."""
    part: RowPart | None = None
    """Part of the row that this rank computes; None: all of it."""

    @property
    def local(self) -> RowPart:
        """Part of the row that this rank computes."""
        return self.part or RowPart(
            token_ids_L=self.token_ids_T,
            position_ids_L=self.position_ids_T,
            uses_L=self.uses_T,
            layout=self.layout,
            scored_M=self.scored_N,
            targets_M=self.targets_N,
            places_M=torch.arange(len(self.scored_N)),
            num_scored=len(self.scored_N),
            sequence=None,
            experts_LB=self.experts_TB,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequences without the last of each; shared ones counted for each sequence."""
        return int(self.uses_T.sum())

    def to(self, device: torch.device, sequence: SequenceGroup | None) -> "PackedTokens":
        """Return a copy whose `local` part is on `device`: this rank's in a `sequence` group, or the whole row."""
        part = self.local if sequence is None else self.local.shared_by(sequence)
        return replace(self, part=part.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass of the policy update: tokens, and the loss's inputs for each scored token."""

    tokens: PackedTokens
    advantages_N: Tensor
    rollout_logprobs_N: Tensor
    trajectory_N: Tensor
    """Number of each token's trajectory, from 0."""
    num_trajectories: int
    reference_logprobs_N: Tensor | None = None
    """Log-probabilities of the reference; None if not computed."""
    old_logprobs_N: Tensor | None = None
    """Log-probabilities of the actor before the update; None if not computed."""

    def to(self, device: torch.device, sequence: SequenceGroup | None) -> "MicroBatch":
        """Return a copy on `device` (`PackedTokens.to`); the loss's inputs are those of the whole row."""
        return MicroBatch(
            tokens=self.tokens.to(device, sequence),
            advantages_N=self.advantages_N.to(device),
            rollout_logprobs_N=self.rollout_logprobs_N.to(device),
            trajectory_N=self.trajectory_N.to(device),
            num_trajectories=self.num_trajectories,
            reference_logprobs_N=None if self.reference_logprobs_N is None else self.reference_logprobs_N.to(device),
            old_logprobs_N=None if self.old_logprobs_N is None else self.old_logprobs_N.to(device),
        )


def pack_tokens(sequences: Sequence[TokenSequence], families: Sequence[Family] | None = None) -> PackedTokens:
    """Pack sequences into one row.

    Args:
        sequences: sequences to pack; scored tokens follow their order.
        families: sequences that share a prefix (`families_of`); None: nothing is shared.

    Raises:
        ValueError: a sequence of fewer than two tokens, or a mask of another length than its ids.
    """
    for sequence in sequences:
        if len(sequence.token_ids) < 2 or len(sequence.response_mask) != len(sequence.token_ids):
            raise ValueError(
                f"pack_tokens: a sequence of {len(sequence.token_ids)} ids with {len(sequence.response_mask)} mask "
                "entries; at least two ids and one mask entry per id are needed"
            )
    row = _Row()
    for family in families or [Family(members=(i,), num_shared=0) for i in range(len(sequences))]:
        row.append(sequences, family)
    scored = [
        row.index_of(number, position)
        for number, sequence in enumerate(sequences)
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
        token_ids_T=torch.tensor(row.token_ids, dtype=torch.long),
        position_ids_T=torch.tensor(row.position_ids, dtype=torch.long),
        uses_T=torch.tensor(row.uses, dtype=torch.float32),
        layout=row_layout(row.lengths, row.prefixes),
        scored_N=torch.tensor(scored, dtype=torch.long),
        targets_N=torch.tensor(targets, dtype=torch.long),
        experts_TB=row.experts(),
    )


class _Row:
    """A row that grows family by family, with the places of each sequence's tokens."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.uses: list[int] = []
        self.lengths: list[int] = []
        self.prefixes: list[SharedPrefix] = []
        self._experts: list[NDArray[np.uint8] | None] = []
        self._places: dict[int, tuple[int, int, int]] = {}
        """Start of the shared part, its length, and start of the rest, keyed by sequence."""

    def append(self, sequences: Sequence[TokenSequence], family: Family) -> None:
        start, shared = len(self.token_ids), family.num_shared
        if shared:
            self._segment(sequences[family.members[0]], range(shared), uses=len(family.members))
        for member in family.members:
            self._places[member] = (start, shared, len(self.token_ids))
            # The last token of a sequence predicts nothing.
            self._segment(sequences[member], range(shared, len(sequences[member].token_ids) - 1))
        if start + shared < len(self.token_ids) and shared:
            prefix = SharedPrefix(start=start, end=start + shared, suffix_end=len(self.token_ids))
            self.prefixes.append(prefix)

    def index_of(self, sequence: int, position: int) -> int:
        start, shared, rest = self._places[sequence]
        return start + position if position < shared else rest + position - shared

    def experts(self) -> Tensor | None:
        """Return `[T, B]`; None if a sequence has none."""
        known = [part for part in self._experts if part is not None]
        return torch.from_numpy(np.concatenate(known)) if known and len(known) == len(self._experts) else None

    def _segment(self, sequence: TokenSequence, positions: range, *, uses: int = 1) -> None:
        self.token_ids += sequence.token_ids[positions.start : positions.stop]
        self.uses += [uses] * len(positions)
        self.position_ids += positions
        if not positions:
            return
        self.lengths.append(len(positions))
        if not sequence.experts:
            self._experts.append(None)
            return
        experts = np.frombuffer(sequence.experts, np.uint8).reshape(len(sequence.token_ids) - 1, -1)
        self._experts.append(experts[positions.start : positions.stop])


def pack_examples(examples: Sequence[TokenSequence], packing: Packing) -> list[PackedTokens]:
    """Pack demonstrations into micro-batches of balanced cost."""
    plan = plan_rows(examples, packing)
    return [plan.pack(row, examples) for row in range(len(plan.rows))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Assignment of trajectories to packed rows.

    Example: two trajectories that share 5 tokens in one row, a third in another: `RowPlan(rows=[[Family(members=(0, 1),
    num_shared=5)], [Family(members=(2,), num_shared=0)]])`.
    """

    rows: list[list[Family]]

    @property
    def members(self) -> list[list[int]]:
        """Trajectories of each row, in the order of their scored tokens."""
        return [[member for family in row for member in family.members] for row in self.rows]

    def pack(self, row: int, sequences: Sequence[TokenSequence]) -> PackedTokens:
        """Pack row number `row`; `sequences` are those of all rows."""
        order = self.members[row]
        place = {member: index for index, member in enumerate(order)}
        families = [
            Family(members=tuple(place[member] for member in family.members), num_shared=family.num_shared)
            for family in self.rows[row]
        ]
        return pack_tokens([sequences[member] for member in order], families)


def plan_rows(sequences: Sequence[TokenSequence], packing: Packing, *, min_rows: int = 0) -> RowPlan:
    """Divide sequences over packed rows of balanced cost.

    Args:
        sequences: sequences to pack.
        packing: settings.
        min_rows: least number of rows, if there are enough sequences; the number that other ranks have, say.
    """
    families = families_of(sequences, max_tokens=packing.max_tokens, share_prefixes=packing.share_prefixes)
    return RowPlan(rows=balanced_bins(families, sequences, packing, min_bins=min_rows))


def pack_trajectories(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | Tensor],
    inputs: Sequence[TokenInputs] | None = None,
    *,
    packing: Packing,
    min_rows: int = 0,
) -> list[MicroBatch]:
    """Pack trajectories into micro-batches (`plan_rows`); each has one advantage for all of its sampled tokens or one for each.

    `inputs` are results of other components, one per trajectory.

    Raises:
        ValueError: a sampled token without a finite rollout log-probability.
    """
    inputs = inputs or [TokenInputs()] * len(trajectories)
    plan = plan_rows(trajectories, packing, min_rows=min_rows)
    return [
        _micro_batch(
            plan.pack(row, trajectories),
            [trajectories[i] for i in members],
            [advantages[i] for i in members],
            [inputs[i] for i in members],
        )
        for row, members in enumerate(plan.members)
    ]


def empty_tokens() -> PackedTokens:
    """Return a row without scored tokens, for a rank that must join the collectives of others."""
    filler = pack_tokens([TokenisedExample(token_ids=[0, 0], response_mask=[0, 0])])
    return replace(filler, uses_T=torch.zeros_like(filler.uses_T))


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
    )


def fill_up(batches: list[_Batch], filler: _Batch, count: int) -> list[_Batch]:
    """Return `batches` padded with fillers to `count`: collectives need the same number of passes on every rank."""
    return batches + [filler] * (count - len(batches))


def _micro_batch(
    tokens: PackedTokens,
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | Tensor],
    inputs: Sequence[TokenInputs],
) -> MicroBatch:
    logprobs = [logprob for trajectory in trajectories for logprob in _scored_logprobs(trajectory)]
    counts = [sum(trajectory.response_mask[1:]) for trajectory in trajectories]
    spread = [
        torch.as_tensor(advantage, dtype=torch.float32).expand(count)
        for advantage, count in zip(advantages, counts, strict=True)
    ]
    return MicroBatch(
        tokens=tokens,
        advantages_N=torch.cat(spread),
        rollout_logprobs_N=torch.tensor(logprobs, dtype=torch.float32),
        trajectory_N=torch.arange(len(trajectories)).repeat_interleave(torch.tensor(counts)),
        num_trajectories=len(trajectories),
        reference_logprobs_N=_concatenated([given.ref_logprobs for given in inputs]),
        old_logprobs_N=_concatenated([given.old_logprobs for given in inputs]),
    )


def _concatenated(parts: Sequence[NDArray[np.float32] | None]) -> Tensor | None:
    """Return all parts as one tensor; None if they are None, which they are for all trajectories or for none."""
    present = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(present)) if present else None


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
