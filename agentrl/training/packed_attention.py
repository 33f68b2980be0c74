"""Causal attention over the segments of a packed row, with no mask and next to no padding.

A mask for a packed row would be `[T, T]`; here every segment attends on its own, so the cost is that of the segments.
On a CPU, segments of nearly equal length share one batched call: they are padded on the right, where causal attention
never looks. On a GPU in half precision, all segments go through one call of PyTorch's variable-length FlashAttention.
Rows with shared prefixes are `merged_attention`'s.

Letters in shapes: T packed tokens, S segments of a bucket, L their longest length, H heads, D head size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.errors import ConfigError
from agentrl.training.merged_attention import BucketTokens, merged_attention
from agentrl.training.row_layout import RowLayout
from agentrl.training.sequence_parallel import SequenceGroup

_CHANGES_THE_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments with which some architectures change attention in a way that is not implemented here."""


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: RowLayout,
    sequence: SequenceGroup | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each segment and to its prefix; the form that the `AttentionInterface` of transformers asks for.

    Args:
        module: the attention layer; not read.
        query: `[1, Hq, T, D]`.
        key: `[1, Hkv, T, D]`, where Hkv divides Hq.
        value: as `key`.
        attention_mask: must be None.
        layout: which tokens are which segment, from the caller of the model.
        sequence: the ranks that have the row's tokens together; T of the shapes here are then those of this rank.
        scaling: factor on the scores; None takes `1 / sqrt(D)`.
        dropout: probability of dropping an attention weight.
        sliding_window: the layer's window, if it has one.
        **kwargs: what else the model passes down; refused where it would change the result.

    Returns:
        `[1, T, Hq, D]` and None for the weights.

    Raises:
        ConfigError: the architecture needs attention that this function does not compute.
    """
    del module
    foreign = [name for name in _CHANGES_THE_SCORES if kwargs.get(name) is not None]
    if attention_mask is not None:
        foreign.append("attention_mask")
    if sliding_window is not None and layout.max_context > sliding_window:
        foreign.append(f"sliding_window={sliding_window}")
    varlen = _goes_in_one_call(layout, query.dtype)
    if dropout and (varlen or layout.prefixes):
        foreign.append(f"dropout={dropout}")
    if foreign:
        raise ConfigError(
            f"`model.path`: this architecture needs {', '.join(foreign)}, which packed training does not compute; use another"
        )
    if sequence is not None:
        query, key, value = (sequence.by_heads(states) for states in (query, key, value))
    if varlen or layout.prefixes:
        mixed = merged_attention(query, key, value, layout, scaling)
    else:
        mixed = _in_buckets(query, key, value, layout, scaling=scaling, dropout=dropout)
    return mixed if sequence is None else sequence.by_tokens(mixed), None


def num_query_rows(layout: RowLayout, dtype: torch.dtype) -> int:
    """Return how many queries attention over a row computes: its tokens, and the padding of buckets where it has some."""
    return sum(layout.lengths) if _goes_in_one_call(layout, dtype) else layout.num_attention_rows


def _goes_in_one_call(layout: RowLayout, dtype: torch.dtype) -> bool:
    return layout.varlen is not None and dtype in (torch.float16, torch.bfloat16)


def _in_buckets(
    query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, *, scaling: float | None, dropout: float
) -> Tensor:
    """Return `[1, T, Hq, D]`: segments of like length in one call of PyTorch's attention."""
    enable_gqa = query.shape[1] != key.shape[1]
    outputs = []
    for bucket in layout.buckets:
        segments = BucketTokens(bucket)
        query_SHLD, key_SHLD, value_SHLD = (segments.take(states[0].transpose(0, 1)) for states in (query, key, value))
        mixed_SHLD = functional.scaled_dot_product_attention(
            query_SHLD, key_SHLD, value_SHLD, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=enable_gqa
        )
        outputs.append(segments.untake(mixed_SHLD))
    return torch.cat(outputs).unsqueeze(0)
