"""Causal attention over the segments of a packed row, without a mask and almost without padding.

Every segment attends on its own, so the cost is that of the segments. On a CPU, segments of nearly equal length share one
batched call, padded on the right. On a GPU in half precision, all segments share one call of PyTorch's variable-length
FlashAttention. `merged_attention` handles shared prefixes and attention sinks.

A layer with a sliding window shorter than a sequence copies the prefix before each continuation, because the visible part of
the prefix depends on the query's position.

Letters in shapes: T packed tokens, S segments of a bucket, L their longest length, H heads, D head size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.errors import ConfigError
from agentrl.training.attention.merged import CPU_KERNEL, can_share_prefixes, cpu_parts, merged_attention, window_mask
from agentrl.training.attention.varlen import VARLEN_KERNEL, varlen_parts
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

    `query` is `[1, Hq, T, D]`, `key` and `value` are `[1, Hkv, T, D]`, where Hkv divides Hq. If ranks share the row, T is this
    rank's number of tokens. `sliding_window` limits the tokens that a token attends to, itself included. `s_aux`, `[Hq]`,
    are scores of the heads' attention sinks. Arguments that would change the result in another way are refused.

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
    arguments = kwargs | {"attention_mask": attention_mask, "dropout": dropout or None}
    if foreign := [name for name in _CHANGES_THE_RESULT if arguments.get(name) is not None]:
        raise ConfigError(
            f"this architecture needs {', '.join(foreign)}, which packed training does not compute; use another"
        )
    if sequence is not None:
        query, key, value = (sequence.by_heads(states) for states in (query, key, value))
        s_aux = None if s_aux is None else s_aux.chunk(sequence.size)[sequence.rank]
    scaling = float(query.shape[-1] ** -0.5) if scaling is None else scaling
    value_size = value.shape[-1]
    if value_size != query.shape[-1]:  # kernels require values as wide as the keys
        value = functional.pad(value, (0, query.shape[-1] - value_size))
    window = sliding_window if sliding_window is not None and layout.max_context > sliding_window else None
    place_T = None
    if window is not None and layout.prefixes:
        row = unshared_row(layout.lengths, layout.prefixes, query.device)
        query, key, value = (states.index_select(2, row.source_U) for states in (query, key, value))
        layout, place_T = row.layout, row.place_T
    mixed = _attend(query, key, value, layout, scaling=scaling, window=window, sinks=s_aux)[..., :value_size]
    mixed = mixed if place_T is None else mixed.index_select(1, place_T)
    return mixed if sequence is None else sequence.by_tokens(mixed), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    *,
    scaling: float,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Return `[1, T, Hq, D]`; a row with a window shares no prefixes."""
    goes_in_one_call = layout.varlen is not None and query.dtype in (torch.float16, torch.bfloat16)
    if not (goes_in_one_call or layout.prefixes or sinks is not None):
        return _in_buckets(query, key, value, layout, scaling=scaling, window=window)
    if query.device.type != "cuda":
        return merged_attention(query, key, value, cpu_parts(layout, window), CPU_KERNEL, scaling, sinks)
    if not can_share_prefixes(query.device, query.dtype):
        raise ConfigError(f"attention sinks in {query.dtype} on a GPU are not supported; set `model.dtype: bfloat16`")
    return merged_attention(query, key, value, varlen_parts(layout, window), VARLEN_KERNEL, scaling, sinks)


def _in_buckets(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    *,
    scaling: float,
    window: int | None,
) -> Tensor:
    """Return `[1, T, Hq, D]`: segments of similar length in one call of PyTorch's attention."""
    enable_gqa = query.shape[1] != key.shape[1]
    outputs = []
    for bucket in layout.buckets:
        query_SHLD, key_SHLD, value_SHLD = (bucket.take(states[0].transpose(0, 1)) for states in (query, key, value))
        mask_LL = window_mask(bucket.max_length, window, query)
        mixed_SHLD = functional.scaled_dot_product_attention(
            query_SHLD,
            key_SHLD,
            value_SHLD,
            attn_mask=mask_LL,
            is_causal=mask_LL is None,
            scale=scaling,
            enable_gqa=enable_gqa,
        )
        outputs.append(bucket.untake(mixed_SHLD))
    return torch.cat(outputs).unsqueeze(0)
