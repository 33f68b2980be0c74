"""Variable-length FlashAttention on GPUs: one call of PyTorch's kernel for each part of a packed row.

PyTorch includes FlashAttention 2; FlashAttention 3 replaces it behind the same operator if it is installed. Written against
PyTorch 2.11 to 2.13; untested on a GPU so far.

Letters in shapes: T packed tokens, Q queries of a call, H heads, D head size.
"""

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from agentrl.training.attention.merged import Kernel, Part
from agentrl.training.packing.row_layout import RowLayout


@dataclass(frozen=True, slots=True)
class _Segments:
    """Tokens of a row, consecutive as `[Q, H, D]`, with the boundaries of the kernel's sequences."""

    boundaries: Tensor
    """0, and the end of each sequence; int32."""
    max_length: int
    index: Tensor | None = None
    """Indices of the tokens; None: all."""

    def take(self, states_THX: Tensor, /) -> Tensor:
        return states_THX if self.index is None else states_THX.index_select(0, self.index)

    def put(self, states_THX: Tensor, states: Tensor, /) -> None:
        if self.index is None:
            states_THX.copy_(states)
        else:
            states_THX.index_copy_(0, self.index, states)

    def add(self, states_THX: Tensor, states: Tensor, /) -> None:
        if self.index is None:
            states_THX += states
        else:
            states_THX.index_add_(0, self.index, states.to(states_THX.dtype))


def varlen_parts(layout: RowLayout, window: int | None = None) -> list[Part]:
    """Return two parts: all segments on themselves, and all continuations on their prefixes."""
    _use_flash_attention_3()
    index = layout.varlen
    assert index is not None, "move the row to the GPU by `RowLayout.to`"
    everything = _Segments(index.boundaries, max(layout.lengths))
    parts = [Part(everything, everything, is_causal=True, window=window)]
    if layout.prefixes:
        suffixes = max(prefix.suffix_end - prefix.end for prefix in layout.prefixes)
        prefixes = max(prefix.end - prefix.start for prefix in layout.prefixes)
        parts.append(
            Part(
                _Segments(index.suffix_boundaries, suffixes, index.suffix_index),
                _Segments(index.prefix_boundaries, prefixes, index.prefix_index),
                is_causal=False,
            )
        )
    return parts


def _forward(part: Part, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    out, lse_HQ, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *_sequences(part), 0.0, part.is_causal, False, scale=scale, **_window(part)
    )
    return out, lse_HQ.transpose(0, 1)


def _backward(
    part: Part, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse_QH: Tensor, scale: float
) -> tuple[Tensor, ...]:
    return torch.ops.aten._flash_attention_backward(
        grad_out.contiguous(),
        query,
        key,
        value,
        out,
        lse_QH.transpose(0, 1).contiguous(),
        *_sequences(part),
        0.0,
        part.is_causal,
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # state of the unused dropout
        torch.empty(0, device=query.device),
        scale=scale,
        **_window(part),
    )


VARLEN_KERNEL = Kernel(_forward, _backward)
"""Kernel for `[Q, H, D]` in half precision and the parts of `varlen_parts`."""


@cache
def _use_flash_attention_3() -> None:
    """Activate FlashAttention 3 if it is installed; it needs a GPU of compute capability 9."""
    if importlib.util.find_spec("flash_attn_interface") and torch.cuda.get_device_capability()[0] == 9:
        from torch.nn.attention import activate_flash_attention_impl  # missing in older PyTorch

        activate_flash_attention_impl("FA3")


def _window(part: Part) -> dict[str, int]:
    """Return the kernel's arguments for a window of `part.window` tokens."""
    return {} if part.window is None else {"window_size_left": part.window - 1, "window_size_right": 0}


def _sequences(part: Part) -> tuple[Tensor, Tensor, int, int]:
    """Return boundaries and longest lengths of queries and keys."""
    queries, keys = part.queries, part.keys
    assert isinstance(queries, _Segments)
    assert isinstance(keys, _Segments)
    return queries.boundaries, keys.boundaries, queries.max_length, keys.max_length
