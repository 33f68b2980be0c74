"""Attention over a packed row in parts: within each segment, and from continuations to their shared prefix, merged exactly.

Attention over two sets of keys is a weighted mean of the attention over each. With `lse` the logarithm of the sum of a
query's exponentiated scores,

    lse = log(exp(lse_a) + exp(lse_b)),    out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b.

The backward pass of FlashAttention (arXiv:2205.14135, algorithm 4) needs only `out` and `lse` of the forward pass: given
those of the whole, each part yields its share of the gradients, and the shares add up. So all continuations of a prefix
attend to it in one call, without a copy or a mask.

An attention sink (arXiv:2309.17453) is one more key per head, with a learned score and no value: a part like any other.

Letters in shapes: T packed tokens, B batch of a call, Q its queries, K its keys, H heads, D head size.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from agentrl.training.packing.row_layout import Bucket, RowLayout


def can_share_prefixes(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if `merged_attention` has a kernel; on GPUs the float32 kernel does not return its `lse`."""
    return device.type != "cuda" or dtype in (torch.float16, torch.bfloat16)


class _Tokens(Protocol):
    """A selection of tokens of the row: `take` returns them in the kernel's shape, `put` and `add` change them in the row."""

    def take(self, states_THX: Tensor, /) -> Tensor: ...
    def put(self, states_THX: Tensor, states: Tensor, /) -> None: ...
    def add(self, states_THX: Tensor, states: Tensor, /) -> None: ...


class Part(NamedTuple):
    """One kernel call; those within segments come first, and cover the row."""

    queries: _Tokens
    keys: _Tokens
    is_causal: bool
    """True within segments; else every query attends to every key."""
    window: int | None = None
    """Limit of the tokens that a query attends to in its segment, itself included; None: no limit."""


class Kernel(NamedTuple):
    """Attention that returns its `lse`, with a backward pass from the `out` and `lse` of the whole."""

    forward: Callable[[Part, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    """`(part, query, key, value, scale) -> (out, shaped as the query, lse, without the last dimension)`."""
    backward: Callable[..., Sequence[Tensor]]
    """`(part, grad_out, query, key, value, out, lse, scale) -> gradients of query, key and value`."""


def merged_attention(
    query: Tensor, key: Tensor, value: Tensor, parts: list[Part], kernel: Kernel, scale: float, sinks: Tensor | None
) -> Tensor:
    """Return `[1, T, Hq, D]`: attention within each segment, and from continuations to their prefix.

    `query` is `[1, Hq, T, D]`, `key` and `value` are `[1, Hkv, T, D]`, where Hkv divides Hq; `sinks`, `[Hq]`, are the scores of
    the heads' sinks.
    """
    return _MergedAttention.apply(query, key, value, sinks, parts, kernel, scale)  # type: ignore[no-any-return]


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks_H: Tensor | None,
        parts: list[Part],
        kernel: Kernel,
        scale: float,
    ) -> Tensor:
        query_THD, key_THD, value_THD = (states[0].transpose(0, 1) for states in (query, key, value))
        out_THD = torch.empty(query_THD.shape, dtype=query.dtype, device=query.device)
        lse_TH1 = torch.empty((*query_THD.shape[:2], 1), dtype=torch.float32, device=query.device)
        for part in parts:
            out, lse = kernel.forward(
                part, part.queries.take(query_THD), part.keys.take(key_THD), part.keys.take(value_THD), scale
            )
            if not part.is_causal:
                out, lse = _merged(part.queries.take(out_THD), part.queries.take(lse_TH1).squeeze(-1), out, lse)
            part.queries.put(out_THD, out)
            part.queries.put(lse_TH1, lse.unsqueeze(-1))
        if sinks_H is not None:
            whole_TH1 = torch.logaddexp(lse_TH1, sinks_H.float().unsqueeze(-1))
            out_THD, lse_TH1 = out_THD * (lse_TH1 - whole_TH1).exp().to(out_THD.dtype), whole_TH1
        ctx.save_for_backward(query, key, value, sinks_H, out_THD, lse_TH1)
        ctx.parts, ctx.kernel, ctx.scale = parts, kernel, scale
        return out_THD.unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks_H, out_THD, lse_TH1 = ctx.saved_tensors
        grad_out_THD = gradients[0][0]
        states = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        # Shares of a key come from several calls and are added up in float32.
        totals = [torch.zeros(tensor.shape, dtype=torch.float32, device=query.device) for tensor in states]
        for part in ctx.parts:
            tokens = (part.queries, part.keys, part.keys)
            shares = ctx.kernel.backward(
                part,
                part.queries.take(grad_out_THD),
                *(chosen.take(tensor) for chosen, tensor in zip(tokens, states, strict=True)),
                part.queries.take(out_THD),
                part.queries.take(lse_TH1).squeeze(-1),
                ctx.scale,
            )
            for chosen, total, share in zip(tokens, totals, shares, strict=True):
                chosen.add(total, share)
        grad_sinks_H = None
        if sinks_H is not None:  # a sink's value is 0, so only its share of the weights matters
            share_TH = (sinks_H.float() - lse_TH1.squeeze(-1)).exp()
            grad_sinks_H = -(share_TH * (grad_out_THD.float() * out_THD.float()).sum(-1)).sum(0).to(sinks_H.dtype)
        grads = (total.transpose(0, 1).unsqueeze(0).to(query.dtype) for total in totals)
        return (*grads, grad_sinks_H, None, None, None)


def _merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention over both sets of keys; `out` has one more dimension than `lse`."""
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = ((each - lse).exp().unsqueeze(-1) for each in (lse_a, lse_b))
    return (weight_a * out_a + weight_b * out_b).to(out_a.dtype), lse


def cpu_parts(layout: RowLayout, window: int | None) -> list[Part]:
    """Return a part for each bucket, and one for each prefix."""
    parts = [Part(bucket, bucket, is_causal=True, window=window) for bucket in layout.buckets]
    for prefix in layout.prefixes:
        suffixes = Bucket.of([prefix.suffix_end - prefix.end], prefix.end)
        parts.append(Part(suffixes, Bucket.of([prefix.end - prefix.start], prefix.start), is_causal=False))
    return parts


def window_mask(length: int, window: int | None, like: Tensor) -> Tensor | None:
    """Return `[L, L]`, 0 where a query attends to a key and minus infinity elsewhere; None if causal attention is enough."""
    return None if window is None or length <= window else _window_mask(length, window, like.dtype, like.device)


@lru_cache(maxsize=4)  # every layer needs the same few lengths
def _window_mask(length: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # autograd may save a mask that was built in a pass without gradients
        reach = torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)
        return torch.zeros(length, length, dtype=dtype, device=device).masked_fill(~reach, -torch.inf)


def _cpu_forward(part: Part, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    mask = window_mask(query.shape[2], part.window, query)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, part.is_causal and mask is None, attn_mask=mask, scale=scale
    )


def _cpu_backward(part: Part, *states: Tensor | float) -> Sequence[Tensor]:
    *tensors, lse, scale = states
    assert isinstance(lse, Tensor)
    # Always in float32: for short segments the bfloat16 kernel takes two to six times as long.
    exact = [each.float() for each in tensors if isinstance(each, Tensor)]
    mask = window_mask(exact[1].shape[2], part.window, lse)
    is_causal = part.is_causal and mask is None
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *exact, lse, 0.0, is_causal, attn_mask=mask, scale=scale
    )


CPU_KERNEL = Kernel(_cpu_forward, _cpu_backward)
"""PyTorch's FlashAttention for CPUs, `[B, H, Q, D]`; query heads may share key heads."""
