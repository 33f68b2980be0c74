"""Sequence parallelism (Ulysses, arXiv:2309.14509): several ranks share a packed row, each with a part of its tokens.

Only attention needs all tokens of a sequence, but its heads are independent: before it, the ranks exchange parts, so that each
has all tokens of some heads; after it they exchange back. Packing and shared prefixes work as on one rank.

The scores of a row (log-probabilities, values) are gathered on every rank, and every rank computes the same loss of the whole
row. Its gradient flows only to the rank's own tokens, so the gradients of a sequence group add up to that of the row.

Letters in shapes: R ranks of a sequence group, T tokens of a row, L = T / R of them on one rank, H heads, D head size,
N scored tokens of the row, M of them on one rank.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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


def gathered(values_M: Tensor, places_M: Tensor, count: int, sequence: SequenceGroup) -> Tensor:
    """Return `[count]` on every rank, each value from the rank that has its place; gradients flow only to that rank."""
    return _Gather.apply(values_M, places_M, count, sequence.process_group)  # type: ignore[no-any-return]


def join_sequence_group(rank: int, world_size: int, size: int, **options: Any) -> SequenceGroup | None:
    """Divide all ranks into groups of `size` neighbours, and return that of `rank`, with `options`; None if `size` is 1."""
    if size == 1:
        return None
    groups = [dist.new_group(list(range(first, first + size)), **options) for first in range(0, world_size, size)]
    own = groups[rank // size]
    assert isinstance(own, dist.ProcessGroup)
    return SequenceGroup(rank=rank % size, size=size, process_group=own)


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
    def forward(ctx: Any, values_M: Tensor, places_M: Tensor, count: int, process_group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places_M)
        # Each value comes from one rank, and the others add zero.
        values_N = values_M.new_zeros(count)
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
