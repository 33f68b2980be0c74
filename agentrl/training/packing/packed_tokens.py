"""The input of a forward pass: a packed row, or this rank's part of a row that several ranks share.

Letters in shapes: T packed input tokens, N scored tokens among them; of the row, or of this rank's part of it.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from agentrl.training.packing.row_layout import RowLayout, row_layout
from agentrl.training.packing.sequence_parallel import SequenceGroup, gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """Input of a forward pass.

    Example: a demonstration of the tokens 5, 6, 7, 8, of which the last two are learnt: `token_ids_T=[5, 6, 7]` (the last token
    predicts nothing), positions `[0, 1, 2]`, `scored_N=[1, 2]` and `targets_N=[7, 8]`. The second of two ranks has `[7]` and
    a filler, with `scored_N=[0]`, `targets_N=[8]` and `places_N=[1]`.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    """Positions within each sequence; a continuation goes on after its prefix."""
    uses_T: Tensor
    """Number of sequences that contain each token, float32; above 1 in a shared prefix, 0 for fillers."""
    layout: RowLayout
    """Layout of the whole row, for attention."""
    scored_N: Tensor
    """Indices into T of the tokens whose successor was sampled, sequence by sequence. A token of a shared prefix occurs once
    for each sequence that was sampled from it."""
    targets_N: Tensor
    """Successors of the scored tokens."""
    num_tokens: int
    """Tokens of the row's sequences without the last of each; shared ones counted for each sequence."""
    num_scored: int
    """Number of scored tokens of the whole row."""
    experts_TB: Tensor | None = None
    """Bytes of each token's experts in the rollout (`Trajectory.experts`), on the host; in a shared prefix, those of its
    longest trajectory. None if unknown for any sequence."""
    sequence: SequenceGroup | None = None
    """Ranks that share the row; None: this rank has all of it."""
    places_N: Tensor | None = None
    """Indices of this rank's scored tokens among those of the row; None: it has all."""

    def to(self, device: torch.device, sequence: SequenceGroup | None) -> "PackedTokens":
        """Return the row, or this rank's part of it in a `sequence` group, on `device`; experts stay on the host."""
        part = self if sequence is None else self._divided(sequence)
        moved = {
            field.name: value.to(device)
            for field in fields(part)
            if isinstance(value := getattr(part, field.name), Tensor | RowLayout) and field.name != "experts_TB"
        }
        return replace(part, **moved)

    def _divided(self, sequence: SequenceGroup) -> "PackedTokens":
        """Return this rank's part; the last part is padded with filler tokens, in a segment of their own."""
        filler = -len(self.token_ids_T) % sequence.size
        token_ids_T, position_ids_T, uses_T = (
            nn.functional.pad(values_T, (0, filler)).chunk(sequence.size)[sequence.rank]
            for values_T in (self.token_ids_T, self.position_ids_T, self.uses_T)
        )
        experts_TB = self.experts_TB
        if experts_TB is not None:
            experts_TB = nn.functional.pad(experts_TB, (0, 0, 0, filler)).chunk(sequence.size)[sequence.rank]
        places_N = (self.scored_N // len(token_ids_T) == sequence.rank).nonzero().squeeze(1)
        return replace(
            self,
            token_ids_T=token_ids_T,
            position_ids_T=position_ids_T,
            uses_T=uses_T,
            layout=row_layout([*self.layout.lengths, filler], self.layout.prefixes) if filler else self.layout,
            scored_N=self.scored_N[places_N] % len(token_ids_T),
            targets_N=self.targets_N[places_N],
            experts_TB=experts_TB,
            sequence=sequence,
            places_N=places_N,
        )

    def gather(self, values_N: Tensor) -> Tensor:
        """Return the values of the whole row on every rank of the group; gradients flow only to this rank's."""
        if self.sequence is None or self.places_N is None:
            return values_N
        return gathered(values_N, self.places_N, self.num_scored, self.sequence)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of a scalar over the ranks of the group; gradients flow only to this rank's."""
        if self.sequence is None:
            return value
        place = torch.tensor([self.sequence.rank], device=value.device)
        return gathered(value[None], place, self.sequence.size, self.sequence).sum()
