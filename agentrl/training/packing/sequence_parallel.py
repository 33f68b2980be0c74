"""Sequence parallelism (Ulysses, arXiv:2309.14509): several ranks share a packed row, each with a part of its tokens.

Only attention needs all tokens of a sequence, but its heads are independent: before it, the ranks exchange parts, so that each
has all tokens of some heads; after it they exchange back. Packing and shared prefixes work as on one rank.

The scores of a row (log-probabilities, values) are gathered on every rank, and every rank computes the same loss of the whole
row. Its gradient flows only to the rank's own tokens, so the gradients of a sequence group add up to that of the row.

Letters in shapes: R ranks of a sequence group, T tokens of a row, L = T / R of them on one rank, H heads, D head size,
N scored tokens of the row, M of them on one rank.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.training.packing.row_layout import RowLayout, row_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Ranks that compute rows together, with this process's place among them."""

    rank: int
    size: int
    process_group: dist.ProcessGroup

    def by_heads(self, states_1HLD: Tensor) -> Tensor:
        """Exchange this rank's tokens of all heads for all tokens of its heads: `[1, H, L, D]` to `[1, H / R, T, D]`.

        Key heads are repeated first if there are fewer than ranks.
        """
        states_LHD = self._enough_heads(states_1HLD)[0].transpose(0, 1)
        parts_RLHD = states_LHD.unflatten(1, (self.size, -1)).transpose(0, 1)
        received_THD = _Exchange.apply(parts_RLHD, self.process_group).flatten(0, 1)
        return received_THD.transpose(0, 1).unsqueeze(0)

    def by_tokens(self, mixed_1THD: Tensor) -> Tensor:
        """Undo `by_heads` after attention: `[1, T, H / R, D]` to `[1, L, H, D]`."""
        parts_RLHD = mixed_1THD[0].unflatten(0, (self.size, -1))
        received_RLHD = _Exchange.apply(parts_RLHD, self.process_group)
        return received_RLHD.transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def _enough_heads(self, states_1HLD: Tensor) -> Tensor:
        times = self.size // math.gcd(states_1HLD.shape[1], self.size)
        # Query heads are a multiple of the key heads and of the ranks, so neighbours still share their key head.
        return states_1HLD if times == 1 else states_1HLD.repeat_interleave(times, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """One rank's part of a packed row; all of it if no other rank shares the row.

    Example, second of two ranks, row of 7 tokens (and a filler) with tokens 2 and 5 scored: `token_ids_L` has tokens 4 to 7,
    `scored_M=[1]` (token 5), `places_M=[1]` (the second scored one), `num_scored=2`.
    """

    token_ids_L: Tensor
    position_ids_L: Tensor
    uses_L: Tensor
    """Number of sequences that contain each token, float32; 0 for fillers."""
    layout: RowLayout
    """Layout of the whole row, for attention."""
    scored_M: Tensor
    """Indices into L of the scored tokens."""
    targets_M: Tensor
    places_M: Tensor
    """Their indices among the N scored tokens of the row."""
    num_scored: int
    """Number of scored tokens of the row, N."""
    sequence: SequenceGroup | None
    """Ranks that share the row; None: no other rank."""
    experts_LB: Tensor | None = None
    """Bytes of each token's experts in the rollout, layer by layer, on the host; None if unknown."""

    def gather(self, values_M: Tensor) -> Tensor:
        """Return the values of the whole row, `[N]`, on every rank of the group; gradients flow only to this rank's."""
        if self.sequence is None:
            return values_M
        return _Gather.apply(values_M, self.places_M, self.num_scored, self.sequence.process_group)  # type: ignore[no-any-return]

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of a scalar over the ranks of the group; gradients flow only to this rank's."""
        if self.sequence is None:
            return value
        place = torch.tensor([self.sequence.rank], device=value.device)
        return _Gather.apply(value[None], place, self.sequence.size, self.sequence.process_group).sum()

    def to(self, device: torch.device) -> "RowPart":
        """Return a copy on `device`; the experts, gigabytes in an update, stay on the host."""
        return replace(
            self,
            token_ids_L=self.token_ids_L.to(device),
            position_ids_L=self.position_ids_L.to(device),
            uses_L=self.uses_L.to(device),
            layout=self.layout.to(device),
            scored_M=self.scored_M.to(device),
            targets_M=self.targets_M.to(device),
            places_M=self.places_M.to(device),
        )

    def shared_by(self, sequence: SequenceGroup) -> "RowPart":
        """Return this rank's part of this row, which must be whole.

        Parts are equal: the last one is padded with filler tokens, fewer than ranks, in a segment of their own.
        """
        filler = -len(self.token_ids_L) % sequence.size
        nothing = torch.zeros(filler, dtype=torch.long)
        token_ids_T, position_ids_T, uses_T = (
            torch.cat([values_T, nothing.to(values_T.dtype)]).chunk(sequence.size)
            for values_T in (self.token_ids_L, self.position_ids_L, self.uses_L)
        )
        num_local = len(token_ids_T[sequence.rank])
        experts_LB = None
        if self.experts_LB is not None:
            filled_TB = nn.functional.pad(self.experts_LB, (0, 0, 0, filler))
            experts_LB = filled_TB.chunk(sequence.size)[sequence.rank]
        places_M = (self.scored_M // num_local == sequence.rank).nonzero().squeeze(1)
        layout = row_layout([*self.layout.lengths, filler], self.layout.prefixes) if filler else self.layout
        return RowPart(
            token_ids_L=token_ids_T[sequence.rank],
            position_ids_L=position_ids_T[sequence.rank],
            uses_L=uses_T[sequence.rank],
            layout=layout,
            scored_M=self.scored_M[places_M] % num_local,
            targets_M=self.targets_M[places_M],
            places_M=places_M,
            num_scored=self.num_scored,
            sequence=sequence,
            experts_LB=experts_LB,
        )


def join_sequence_group(rank: int, world_size: int, size: int, **options: Any) -> SequenceGroup | None:
    """Divide all ranks into sequence groups of neighbours, and return that of `rank`; None if `size` is 1.

    Args:
        rank: rank of this process; every rank must call this.
        world_size: number of ranks.
        size: ranks per group.
        options: options of the new process groups.

    Raises:
        ConfigError: `size` does not divide `world_size`.
    """
    if size == 1:
        return None
    if world_size % size:
        raise ConfigError(
            f"`actor.sequence_parallel_size` is {size}, which does not divide {world_size} ranks; change one of them"
        )
    groups = [dist.new_group(list(range(first, first + size)), **options) for first in range(0, world_size, size)]
    own = groups[rank // size]
    assert isinstance(own, dist.ProcessGroup)
    return SequenceGroup(rank=rank % size, size=size, process_group=own)


def require_divisible_heads(model: nn.Module, size: int) -> None:
    """Refuse a model whose attention heads cannot be divided evenly over `size` ranks.

    Raises:
        ConfigError: they cannot.
    """
    for part in model.modules():
        if not isinstance(part, PreTrainedModel):
            continue
        num_heads = part.config.get_text_config().num_attention_heads
        if num_heads % size:
            raise ConfigError(
                f"`actor.sequence_parallel_size` is {size}, which does not divide the {num_heads} attention heads of "
                f"{type(part).__name__}; take a divisor of {num_heads}"
            )


class _Exchange(torch.autograd.Function):
    """All-to-all exchange: rank r receives chunk r of every rank's `[R, ...]`; the gradient takes the same way back."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, process_group: dist.ProcessGroup) -> Tensor:
        ctx.process_group = process_group
        return _all_to_all(parts, process_group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients[0], ctx.process_group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_M: Tensor, places_M: Tensor, num_scored: int, process_group: dist.ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(places_M)
        # Each value comes from one rank, and the others add zero.
        values_N = values_M.new_zeros(num_scored)
        values_N[places_M] = values_M
        dist.all_reduce(values_N, group=process_group)
        return values_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [places_M] = ctx.saved_tensors
        return gradients[0][places_M], None, None, None


def _all_to_all(parts: Tensor, process_group: dist.ProcessGroup) -> Tensor:
    received = torch.empty(parts.shape, dtype=parts.dtype, device=parts.device)
    dist.all_to_all_single(received, parts.contiguous(), group=process_group)
    return received
