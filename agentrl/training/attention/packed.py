"""Causal attention over the segments of a packed row, without a mask and almost without padding.

Every segment attends on its own, so the cost is that of the segments. On a CPU, segments of nearly equal length share one
batched call, padded on the right. On a GPU in half precision, all segments share one call of PyTorch's variable-length
FlashAttention. `merged_attention` handles shared prefixes and attention sinks.

A layer with a sliding window shorter than a sequence copies the prefix before each continuation, because the visible part of
the prefix depends on the query's position.

Letters in shapes: T packed tokens, S segments of a bucket, L their longest length, H heads, D head size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.errors import ConfigError
from agentrl.training.attention.merged import BucketTokens, merged_attention, window_mask
from agentrl.training.packing.row_layout import RowLayout, unshared_row
from agentrl.training.packing.sequence_parallel import SequenceGroup

_CHANGES_THE_RESULT = ("softcap", "position_bias", "attention_mask", "dropout")
"""Arguments of some architectures that change attention in an unsupported way."""


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: RowLayout | None = None,
    sequence: SequenceGroup | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each segment and to its prefix, with the signature of transformers' `AttentionInterface`.

    Args:
        module: the attention layer; not read.
        query: `[1, Hq, T, D]`.
        key: `[1, Hkv, T, D]`, where Hkv divides Hq.
        value: as `key`.
        attention_mask: must be None.
        layout: segments of the row, from the caller of the model; None: the model did not pass it on.
        sequence: ranks that share the row; T in the shapes is then this rank's number of tokens.
        scaling: factor on the scores; None takes `1 / sqrt(D)`.
        dropout: probability of dropping an attention weight.
        sliding_window: limit of the tokens that a token attends to, itself included; None: no limit.
        s_aux: `[Hq]`, scores of the heads' attention sinks, if any.
        **kwargs: further arguments of the model; refused if they would change the result.

    Returns:
        `[1, T, Hq, D]` and None for the weights.

    Raises:
        ConfigError: the architecture needs unsupported attention.
    """
    del module
    if layout is None:
        raise ConfigError(
            "this architecture does not pass arguments on to its attention, so packed training cannot say where "
            "sequences end; use another"
        )
    is_merged = _goes_in_one_call(layout, query.dtype) or bool(layout.prefixes) or s_aux is not None
    _require_computable(
        kwargs | {"attention_mask": attention_mask, "dropout": dropout if is_merged and dropout else None}
    )
    if sequence is not None:
        query, key, value = (sequence.by_heads(states) for states in (query, key, value))
        s_aux = None if s_aux is None else s_aux.chunk(sequence.size)[sequence.rank]
    scaling = float(query.shape[-1] ** -0.5) if scaling is None else scaling
    value_size, value = value.shape[-1], _widened(value, query.shape[-1])
    if sliding_window is not None and layout.max_context > sliding_window:
        mixed = _in_windows(query, key, value, layout, sliding_window, scaling=scaling, dropout=dropout, sinks=s_aux)
    elif is_merged:
        mixed = merged_attention(query, key, value, layout, scaling, sinks=s_aux)
    else:
        mixed = _in_buckets(query, key, value, layout, scaling=scaling, dropout=dropout)
    mixed = mixed[..., :value_size]
    return mixed if sequence is None else sequence.by_tokens(mixed), None


def _require_computable(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would change the result.

    Raises:
        ConfigError: the architecture needs one.
    """
    foreign = [name for name in _CHANGES_THE_RESULT if arguments.get(name) is not None]
    if foreign:
        raise ConfigError(
            f"this architecture needs {', '.join(foreign)}, which packed training does not compute; use another"
        )


def num_query_rows(layout: RowLayout, dtype: torch.dtype) -> int:
    """Return the number of queries that attention over a row computes, padding of buckets included."""
    return sum(layout.lengths) if _goes_in_one_call(layout, dtype) else layout.num_attention_rows


def _goes_in_one_call(layout: RowLayout, dtype: torch.dtype) -> bool:
    return layout.varlen is not None and dtype in (torch.float16, torch.bfloat16)


def _widened(value: Tensor, size: int) -> Tensor:
    """Return `value` zero-padded to the size of the keys, which kernels require."""
    return value if value.shape[-1] == size else functional.pad(value, (0, size - value.shape[-1]))


def _in_windows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    window: int,
    *,
    scaling: float,
    dropout: float,
    sinks: Tensor | None,
) -> Tensor:
    """Return `[1, T, Hq, D]`: each token attends to at most `window` tokens of its sequence."""
    place_T = None
    if layout.prefixes:
        row = unshared_row(layout.lengths, layout.prefixes, query.device)
        query, key, value = (states.index_select(2, row.source_U) for states in (query, key, value))
        layout, place_T = row.layout, row.place_T
    if _goes_in_one_call(layout, query.dtype) or sinks is not None:
        mixed = merged_attention(query, key, value, layout, scaling, window=window, sinks=sinks)
    else:
        mixed = _in_buckets(query, key, value, layout, scaling=scaling, dropout=dropout, window=window)
    return mixed if place_T is None else mixed.index_select(1, place_T)


def _in_buckets(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    *,
    scaling: float,
    dropout: float,
    window: int | None = None,
) -> Tensor:
    """Return `[1, T, Hq, D]`: segments of similar length in one call of PyTorch's attention."""
    enable_gqa = query.shape[1] != key.shape[1]
    outputs = []
    for bucket in layout.buckets:
        segments = BucketTokens(bucket)
        query_SHLD, key_SHLD, value_SHLD = (segments.take(states[0].transpose(0, 1)) for states in (query, key, value))
        mask_LL = window_mask(bucket.max_length, window, query)
        mixed_SHLD = functional.scaled_dot_product_attention(
            query_SHLD,
            key_SHLD,
            value_SHLD,
            attn_mask=mask_LL,
            is_causal=mask_LL is None,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=enable_gqa,
        )
        outputs.append(segments.untake(mixed_SHLD))
    return torch.cat(outputs).unsqueeze(0)
