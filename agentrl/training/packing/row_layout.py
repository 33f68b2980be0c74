"""Layout of a packed row: its segments, and the prefixes that several segments continue.

A row is a chain of segments, `[segment 0 | segment 1 | ...]`. A token attends to the earlier tokens of its own segment,
and to all of the shared prefix that its segment continues, if any: `[prefix | suffix 0 | suffix 1 | ...]`.

Letters in shapes: T packed tokens, S segments of a bucket, L their longest length, H heads, X any size, F shared prefixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

_MAX_PADDING_SHARE = 0.1
"""Limit of the padding in a bucket, as a share of its tokens: trades wasted rows for fewer calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Consecutive segments that attend in one call, right-padded with zeros to equal length.

    Example: lengths 4 and 3 behind a first segment of 9 tokens: `start=9, end=16, num_sequences=2, max_length=4,
    padded_index=[0, 1, 2, 3, 4, 5, 6]` (row 7 of the padded `[2 * 4]` rows stays empty).
    """

    start: int
    end: int
    num_sequences: int
    max_length: int
    padded_index: Tensor | None
    """Place of each token among the `[S * L]` padded rows; None if all lengths are equal."""

    @classmethod
    def of(cls, lengths: Sequence[int], start: int) -> "Bucket":
        """Return the bucket of segments of these lengths; the first begins at token `start`."""
        longest, padded_index = max(lengths), None
        if min(lengths) < longest:
            padded_index = torch.cat([torch.arange(n) + row * longest for row, n in enumerate(lengths)])
        return cls(
            start=start,
            end=start + sum(lengths),
            num_sequences=len(lengths),
            max_length=longest,
            padded_index=padded_index,
        )

    def to(self, device: torch.device) -> "Bucket":
        """Return a copy whose index is on `device`."""
        return self if self.padded_index is None else replace(self, padded_index=self.padded_index.to(device))

    def take(self, states_THX: Tensor, /) -> Tensor:
        """Return the bucket's tokens as `[S, H, L, X]`."""
        rows = states_THX[self.start : self.end]
        if self.padded_index is not None:
            shape = (self.num_sequences * self.max_length, *rows.shape[1:])
            rows = rows.new_zeros(shape).index_copy(0, self.padded_index, rows)
        return rows.unflatten(0, (self.num_sequences, self.max_length)).transpose(1, 2)

    def untake(self, states_SHLX: Tensor) -> Tensor:
        """Return the tokens of `[S, H, L, X]`, one after another."""
        rows = states_SHLX.transpose(1, 2).flatten(0, 1)
        return rows if self.padded_index is None else rows.index_select(0, self.padded_index)

    def put(self, states_THX: Tensor, states_SHLX: Tensor, /) -> None:
        """Overwrite the bucket's tokens."""
        states_THX[self.start : self.end] = self.untake(states_SHLX)

    def add(self, states_THX: Tensor, states_SHLX: Tensor, /) -> None:
        """Add to the bucket's tokens."""
        states_THX[self.start : self.end] += self.untake(states_SHLX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A segment that the following segments continue.

    Example: a prompt of 4 tokens at the start of a row, with two responses of 2 and 3: `start=0, end=4, suffix_end=9`.
    """

    start: int
    end: int
    suffix_end: int
    """One past its last continuation; the first starts at `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenIndex:
    """Boundaries of a row for the variable-length kernels of GPUs: 0, and the end of each sequence, int32 on the device."""

    boundaries: Tensor
    """`[segments + 1]`."""
    suffix_index: Tensor
    """Tokens that continue a prefix."""
    suffix_boundaries: Tensor
    """`[F + 1]`, in `suffix_index`."""
    prefix_index: Tensor
    """Tokens of all prefixes."""
    prefix_boundaries: Tensor
    """`[F + 1]`, in `prefix_index`."""


@dataclass(slots=True, kw_only=True, eq=False)  # never changed, but not frozen: see the docstring
class RowLayout:
    """The segments of one packed row; `row_layout` creates it.

    Plain Python integers, computed once per micro-batch: reading a tensor of boundaries would synchronise a GPU in every layer.
    Compiled layers pass it on to their attention. Before torch 2.13, Dynamo recompiles a layer for each new value of a frozen
    dataclass; of other objects it checks only the type.
    """

    lengths: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    prefixes: tuple[SharedPrefix, ...]
    varlen: VarlenIndex | None = None
    """Boundaries for a GPU's kernels; None on a CPU."""

    @property
    def max_context(self) -> int:
        """Largest number of tokens that a token attends to, itself included."""
        ends = accumulate(self.lengths)
        segments = [(end - length, end) for end, length in zip(ends, self.lengths, strict=True)]
        return max(
            end - start + next((p.end - p.start for p in self.prefixes if p.end <= start < p.suffix_end), 0)
            for start, end in segments
        )

    def to(self, device: torch.device) -> "RowLayout":
        """Return a copy on `device`."""
        buckets = tuple(bucket.to(device) for bucket in self.buckets)
        return replace(self, buckets=buckets, varlen=self._varlen_index(device) if device.type == "cuda" else None)

    def _varlen_index(self, device: torch.device) -> VarlenIndex:
        def boundaries(lengths: Sequence[int]) -> Tensor:
            return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device)

        def index(ranges: Sequence[tuple[int, int]]) -> Tensor:
            return torch.cat([torch.arange(0), *(torch.arange(start, end) for start, end in ranges)]).to(device)

        suffixes = [(prefix.end, prefix.suffix_end) for prefix in self.prefixes]
        prefixes = [(prefix.start, prefix.end) for prefix in self.prefixes]
        return VarlenIndex(
            boundaries=boundaries(self.lengths),
            suffix_index=index(suffixes),
            suffix_boundaries=boundaries([end - start for start, end in suffixes]),
            prefix_index=index(prefixes),
            prefix_boundaries=boundaries([end - start for start, end in prefixes]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsharedRow:
    """A row with shared prefixes expanded: each continuation follows a copy of its prefix.

    Example: a prompt of 4 tokens with two responses of 2 and 3 (`lengths` 4, 2, 3) becomes segments of 6 and 7 tokens:
    `source_U=[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 6, 7, 8]`, `place_T=[0, 1, 2, 3, 4, 5, 10, 11, 12]`.
    """

    layout: RowLayout
    source_U: Tensor
    """Index in the row of each token of the expanded row."""
    place_T: Tensor
    """Index in the expanded row of each token of the row; for a prefix, in its first copy."""


@lru_cache(maxsize=4)  # every layer needs the same few rows
def unshared_row(lengths: tuple[int, ...], prefixes: tuple[SharedPrefix, ...], device: torch.device) -> UnsharedRow:
    """Return a row of these segments with its prefixes expanded, on `device`."""
    starts = [end - length for end, length in zip(accumulate(lengths), lengths, strict=True)]
    begins = {prefix.start for prefix in prefixes}
    segments = []
    for start, length in zip(starts, lengths, strict=True):
        if start not in begins:
            prefix = next((range(p.start, p.end) for p in prefixes if p.end <= start < p.suffix_end), range(0))
            segments.append([*prefix, *range(start, start + length)])
    source = [token for segment in segments for token in segment]
    places: dict[int, int] = {}
    for place, token in enumerate(source):
        places.setdefault(token, place)
    return UnsharedRow(
        layout=row_layout([len(segment) for segment in segments]).to(device),
        source_U=torch.tensor(source, device=device),
        place_T=torch.tensor([places[token] for token in range(sum(lengths))], device=device),
    )


def row_layout(lengths: Sequence[int], prefixes: Sequence[SharedPrefix] = ()) -> RowLayout:
    """Return the layout of segments of these lengths; descending lengths give few buckets."""
    return RowLayout(lengths=tuple(lengths), buckets=bucket_sequences(lengths), prefixes=tuple(prefixes))


def bucket_sequences(lengths: Sequence[int]) -> tuple[Bucket, ...]:
    """Group consecutive segments of nearly equal length."""
    buckets, first, start = [], 0, 0
    while first < len(lengths):
        last, num_tokens, longest = first, 0, lengths[first]
        while last < len(lengths):
            longest = max(longest, lengths[last])
            if longest * (last - first + 1) > (num_tokens + lengths[last]) * (1 + _MAX_PADDING_SHARE):
                break
            num_tokens += lengths[last]
            last += 1
        buckets.append(Bucket.of(lengths[first:last], start))
        first, start = last, start + num_tokens
    return tuple(buckets)
