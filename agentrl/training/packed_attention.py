"""Causal attention over sequences that stand one after another in a single row, with no padding anywhere else.

A packed row is `[seq 0 | seq 1 | ...]`. A mask for it would be `[T, T]`; here every sequence attends on its own, so the
cost is that of the sequences. Sequences of nearly equal length share one batched call: they are padded on the right,
where causal attention never looks, and so need no mask.

Letters in shapes: T packed tokens, S sequences of a bucket, L their longest length, H heads, D head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MAX_PADDING_SHARE = 0.1
"""A bucket may compute this much more attention rows than it has tokens: fewer calls against wasted rows."""
_CHANGES_THE_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments with which some architectures change attention in a way that is not implemented here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Neighbouring sequences that attend in one call.

    Example: lengths 4 and 3 behind a first sequence of 9 tokens: `start=9, end=16, num_sequences=2, max_length=4,
    padded_index=[0, 1, 2, 3, 4, 5, 6]` (row 7 of the padded `[2 * 4]` rows stays empty).
    """

    start: int
    """First token of the bucket in the packed row."""
    end: int
    """One past its last token."""
    num_sequences: int
    max_length: int
    padded_index: Tensor | None
    """Where each token goes among the `[S * L]` padded rows; None when all lengths are equal and nothing is padded."""

    def to(self, device: torch.device) -> "Bucket":
        """Return a copy whose index is on `device`."""
        return self if self.padded_index is None else replace(self, padded_index=self.padded_index.to(device))


def bucket_sequences(lengths: Sequence[int]) -> tuple[Bucket, ...]:
    """Group neighbours of nearly equal length; sort the lengths downwards to get few buckets.

    Plain Python integers, computed once per micro-batch: reading a tensor of boundaries would stop the GPU in every layer.
    """
    buckets, first, start = [], 0, 0
    while first < len(lengths):
        last, num_tokens, longest = first, 0, lengths[first]
        while last < len(lengths):
            longest = max(longest, lengths[last])
            if longest * (last - first + 1) > (num_tokens + lengths[last]) * (1 + _MAX_PADDING_SHARE):
                break
            num_tokens += lengths[last]
            last += 1
        buckets.append(_bucket(lengths[first:last], start))
        first, start = last, start + num_tokens
    return tuple(buckets)


def _bucket(lengths: Sequence[int], start: int) -> Bucket:
    longest = max(lengths)
    padded_index = None
    if min(lengths) < longest:
        padded_index = torch.cat([torch.arange(n) + row * longest for row, n in enumerate(lengths)])
    return Bucket(
        start=start,
        end=start + sum(lengths),
        num_sequences=len(lengths),
        max_length=longest,
        padded_index=padded_index,
    )


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    buckets: tuple[Bucket, ...],
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence; the form that the `AttentionInterface` of transformers asks for.

    Args:
        module: the attention layer; not read.
        query: `[1, Hq, T, D]`.
        key: `[1, Hkv, T, D]`, where Hkv divides Hq.
        value: as `key`.
        attention_mask: must be None.
        buckets: which tokens are which sequence, from the caller of the model.
        scaling: factor on the scores; None takes `1 / sqrt(D)`.
        dropout: probability of dropping an attention weight.
        sliding_window: the layer's window, if it has one.
        **kwargs: what else the model passes down; refused where it would change the result.

    Returns:
        `[1, T, Hq, D]` and None for the weights.

    Raises:
        NotImplementedError: the architecture needs attention that this function does not compute.
    """
    del module
    foreign = [name for name in _CHANGES_THE_SCORES if kwargs.get(name) is not None]
    if attention_mask is not None:
        foreign.append("attention_mask")
    if sliding_window is not None and any(bucket.max_length > sliding_window for bucket in buckets):
        foreign.append(f"sliding_window={sliding_window}")
    if foreign:
        raise NotImplementedError(
            f"packed attention: not computed here: {', '.join(foreign)}; use another architecture"
        )
    enable_gqa = query.shape[1] != key.shape[1]
    rows = zip(*(_padded_rows(states, buckets) for states in (query, key, value)), buckets, strict=True)
    outputs = []
    for query_SHLD, key_SHLD, value_SHLD, bucket in rows:
        mixed_SHLD = functional.scaled_dot_product_attention(
            query_SHLD, key_SHLD, value_SHLD, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=enable_gqa
        )
        mixed = mixed_SHLD.transpose(1, 2).flatten(0, 1)
        outputs.append(mixed if bucket.padded_index is None else mixed.index_select(0, bucket.padded_index))
    return torch.cat(outputs).unsqueeze(0), None


def _padded_rows(states_1HTD: Tensor, buckets: tuple[Bucket, ...]) -> Iterator[Tensor]:
    """Yield `[S, H, L, D]` of each bucket."""
    states_THD = states_1HTD[0].transpose(0, 1)
    for bucket in buckets:
        rows = states_THD[bucket.start : bucket.end]
        shape = (bucket.num_sequences * bucket.max_length, *rows.shape[1:])
        if bucket.padded_index is not None:
            rows = rows.new_zeros(shape).index_copy(0, bucket.padded_index, rows)
        yield rows.unflatten(0, (bucket.num_sequences, bucket.max_length)).transpose(1, 2)
