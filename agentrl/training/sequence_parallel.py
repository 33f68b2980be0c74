"""Several ranks compute one packed row together (Ulysses, arXiv:2309.14509): each has a part of its tokens.

Everything but attention treats tokens one by one. Attention needs all tokens of a sequence, but its heads know nothing of
each other: before it, the ranks exchange parts, so that each has all tokens of some heads, and after it they exchange back.
Attention itself does not notice, so packing and shared prefixes work as on one rank.

The scored numbers of a row (log-probabilities, values) are brought together on every rank, and every rank computes the same
loss of the whole row. Its gradient goes back to the rank's own tokens alone, so that the gradients of the ranks of a sequence
group add up to the gradient of the row, as those of other ranks add up to that of the batch.

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
from agentrl.training.row_layout import RowLayout, row_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """The ranks that compute rows together, and this process's place among them."""

    rank: int
    size: int
    process_group: dist.ProcessGroup

    def by_heads(self, states_1HLD: Tensor) -> Tensor:
        """Give this rank's tokens of all heads for all tokens of its heads: `[1, H, L, D]` to `[1, H / R, T, D]`.

        Key heads that are too few for every rank to have one are repeated first.
        """
        states_LHD = self._enough_heads(states_1HLD)[0].transpose(0, 1)
        parts_RLHD = states_LHD.unflatten(1, (self.size, -1)).transpose(0, 1)
        received_THD = _Exchange.apply(parts_RLHD, self.process_group).flatten(0, 1)
        return received_THD.transpose(0, 1).unsqueeze(0)

    def by_tokens(self, mixed_1THD: Tensor) -> Tensor:
        """Undo `by_heads` behind the attention: `[1, T, H / R, D]` to `[1, L, H, D]`."""
        parts_RLHD = mixed_1THD[0].unflatten(0, (self.size, -1))
        received_RLHD = _Exchange.apply(parts_RLHD, self.process_group)
        return received_RLHD.transpose(0, 1).flatten(1, 2).unsqueeze(0)

    def _enough_heads(self, states_1HLD: Tensor) -> Tensor:
        times = self.size // math.gcd(states_1HLD.shape[1], self.size)
        # Query heads are a multiple of the key heads and of the ranks, so neighbours still share their key head.
        return states_1HLD if times == 1 else states_1HLD.repeat_interleave(times, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """What one rank computes of a packed row: all of it, or its part where several ranks share the row.

    Example, for the second of two ranks, of a row of 7 tokens (and one to fill up) with tokens 2 and 5 scored:
    `token_ids_L` has tokens 4 to 7, `scored_M=[1]` (token 5), `places_M=[1]` (the second that is scored), `num_scored=2`.
    """

    token_ids_L: Tensor
    position_ids_L: Tensor
    uses_L: Tensor
    """Number of sequences that hold each token, float32; 0 for tokens that only fill up."""
    layout: RowLayout
    """Of the whole row: what attention sees."""
    scored_M: Tensor
    """Indices into L."""
    targets_M: Tensor
    places_M: Tensor
    """Which of the N scored tokens of the row they are."""
    num_scored: int
    """N."""
    sequence: SequenceGroup | None
    """None: this rank has the row for itself."""
    experts_LB: Tensor | None = None
    """Bytes of the experts of each token in the rollout, layer by layer, on the host; None: unknown."""

    def of_whole_row(self, values_M: Tensor) -> Tensor:
        """Return `[N]`, on every rank of the group; gradients go back to this rank's own."""
        if self.sequence is None:
            return values_M
        return _BroughtTogether.apply(values_M, self.places_M, self.num_scored, self.sequence.process_group)  # type: ignore[no-any-return]

    def sum_of_parts(self, value: Tensor) -> Tensor:
        """Add a number, `[]`, over the ranks of the group, which all get the sum; gradients go back to this rank's own."""
        if self.sequence is None:
            return value
        place = torch.tensor([self.sequence.rank], device=value.device)
        return _BroughtTogether.apply(value[None], place, self.sequence.size, self.sequence.process_group).sum()

    def to(self, device: torch.device) -> "RowPart":
        """Return a copy on `device`; the experts stay on the host, for those of an update would fill gigabytes of a GPU."""
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
        """Return what this rank computes of this row, which must be whole.

        The ranks' parts are equal: the last one is filled up with tokens of a segment of their own, less than one per rank.
        """
        filler = -len(self.token_ids_L) % sequence.size
        nothing = torch.zeros(filler, dtype=torch.long)
        token_ids_T, position_ids_T, uses_T = (
            torch.cat([values_T, nothing.to(values_T.dtype)]).chunk(sequence.size)
            for values_T in (self.token_ids_L, self.position_ids_L, self.uses_L)
        )
        num_here = len(token_ids_T[sequence.rank])
        experts_LB = None
        if self.experts_LB is not None:
            filled_TB = nn.functional.pad(self.experts_LB, (0, 0, 0, filler))
            experts_LB = filled_TB.chunk(sequence.size)[sequence.rank]
        places_M = (self.scored_M // num_here == sequence.rank).nonzero().squeeze(1)
        layout = row_layout([*self.layout.lengths, filler], self.layout.prefixes) if filler else self.layout
        return RowPart(
            token_ids_L=token_ids_T[sequence.rank],
            position_ids_L=position_ids_T[sequence.rank],
            uses_L=uses_T[sequence.rank],
            layout=layout,
            scored_M=self.scored_M[places_M] % num_here,
            targets_M=self.targets_M[places_M],
            places_M=places_M,
            num_scored=self.num_scored,
            sequence=sequence,
            experts_LB=experts_LB,
        )


def join_sequence_group(rank: int, world_size: int, size: int, **options: Any) -> SequenceGroup | None:
    """Divide all ranks into sequence groups of neighbours, and return the one of `rank`; None where each is alone.

    Args:
        rank: of this process among all; every one of them must call this.
        world_size: how many there are.
        size: ranks of a group.
        options: for each new process group.

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
    """Each rank gives chunk r of `[R, ...]` to rank r, and has afterwards what the others had for it; so has the gradient."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, process_group: dist.ProcessGroup) -> Tensor:
        ctx.process_group = process_group
        return _all_to_all(parts, process_group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients[0], ctx.process_group), None


class _BroughtTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_M: Tensor, places_M: Tensor, num_scored: int, process_group: dist.ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(places_M)
        # Each number comes from one rank, and the others add zero to it.
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
