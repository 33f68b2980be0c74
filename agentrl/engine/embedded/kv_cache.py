"""Keys and values of the running and parked sequences, and attention over them.

transformers calls `attend` instead of its own attention in every layer. The new tokens of all sequences lie behind each other
in one packed row, without padding. Sequences with one new token (decoding) attend together over the slice [:span] of the cache,
without a gather; those with several (prefill) one by one.

Shapes: N new tokens, R rows of the cache, S sequences with one new token, Q query heads, H key-value heads, G = Q / H,
D head dimension, T tokens of a chunk, L tokens attended to, C capacity of a row; 2 stands for keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agentrl.errors import ConfigError

ATTENTION_NAME = "agentrl_kv_cache"
_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """The new tokens `[start, stop)` of a row."""

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.stop - self.start


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Per layer [2, R, H, C, D]; C doubles up to `max_tokens`, so short sequences do not pay for a long context."""

    num_rows: int
    max_tokens: int
    layers: dict[int, Tensor] = field(default_factory=dict)

    def store(self, layer: int, new_2HND: Tensor, step: "Step") -> Tensor:
        """Write the keys and values of the step's tokens; return those of all rows."""
        buffer = self.layers.get(layer, new_2HND.new_empty(2, self.num_rows, new_2HND.shape[1], 0, new_2HND.shape[3]))
        if buffer.shape[3] < step.max_length:
            capacity = min(self.max_tokens, max(_FIRST_CAPACITY, 1 << (step.max_length - 1).bit_length()))
            buffer = self.layers[layer] = F.pad(buffer, (0, 0, 0, capacity - buffer.shape[3]))
        buffer[:, step.rows_N, :, step.positions_N] = new_2HND.permute(2, 0, 1, 3)
        return buffer

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one row to another."""
        for buffer in self.layers.values():
            buffer[:, target, :, :num_tokens] = buffer[:, source, :, :num_tokens]


class Step:
    """Cache positions of the new tokens of one forward pass, and all that its layers share."""

    def __init__(self, cache: KVCache, chunks: Sequence[Chunk], device: str) -> None:
        """Lay out a step of `chunks`; chunks with a single token come first."""
        self.cache = cache
        self.num_singles = sum(len(chunk) == 1 for chunk in chunks)
        singles, self.prefills = chunks[: self.num_singles], chunks[self.num_singles :]
        self.rows_N = torch.tensor([chunk.row for chunk in chunks for _ in range(len(chunk))], device=device)
        self.positions_N = torch.tensor([p for c in chunks for p in range(c.start, c.stop)], device=device)
        self.rows_S = self.rows_N[: self.num_singles]
        self.span = max((chunk.row for chunk in singles), default=-1) + 1
        self.single_length = max((chunk.stop for chunk in singles), default=0)
        self.max_length = max(chunk.stop for chunk in chunks)
        self._masks: dict[int | None, tuple[Tensor, list[Tensor]]] = {}

    def masks(self, window: int | None) -> tuple[Tensor, list[Tensor]]:
        """Return the attention masks of layers with a sliding `window`; None: full causal attention.

        Returns:
            [span, 1, 1, L] for the sequences with one new token, and [T, max length] for each of the others.
        """
        if window not in self._masks:
            keys_L, past_N1 = torch.arange(self.max_length, device=self.rows_N.device), self.positions_N[:, None]
            mask_NL = (keys_L <= past_N1) & (keys_L > past_N1 - (window or self.max_length))
            singles_SL, *prefills = mask_NL.split([self.num_singles, *map(len, self.prefills)])
            # Rows in [:span] without a new token attend to their first position; their output is unused.
            singles_RL = (keys_L == 0).repeat(self.span, 1).index_copy(0, self.rows_S, singles_SL)
            self._masks[window] = singles_RL[:, None, None, : self.single_length], prefills
        return self._masks[window]


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, *, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    """Store the new keys and values, and attend over the cache (a transformers attention function).

    Args:
        module: the attention layer.
        query: [1, Q, N, D].
        key: [1, H, N, D].
        value: [1, H, N, D].
        mask: unused; the step has its own masks.
        scaling: factor of the scores.
        **kwargs: `step`, passed down by the model's forward; `sliding_window`, the most tokens that a token of the layer
            attends to, itself included; and other arguments of the model.

    Returns:
        [1, N, Q, D], and None for the attention weights.

    Raises:
        ConfigError: the model needs more than causal attention, or does not pass arguments down.
    """
    step: Step | None = kwargs.get("step")
    if step is None:
        raise ConfigError("`model.path`: this architecture passes no arguments to its attention. Use another engine")
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ConfigError(f"`model.path`: the embedded engine has no attention with `{name}`. Use another engine")
    value_size = value.shape[-1]  # smaller than that of the keys in latent attention
    value = F.pad(value, (0, max(0, key.shape[-1] - value_size)))
    singles_mask, prefill_masks = step.masks(kwargs.get("sliding_window"))
    cache_2RHCD = step.cache.store(module.layer_idx, torch.cat([key, value]), step)
    # The G query heads that share a key-value head form a dimension.
    query_NHGD = query[0].transpose(0, 1).unflatten(1, (key.shape[1], -1))
    singles_SHGD, *parts_THGD = query_NHGD.split([step.num_singles, *map(len, step.prefills)])
    outputs = [_attend_singles(singles_SHGD, cache_2RHCD, step, singles_mask, scaling)]
    for query_THGD, chunk, mask_TL in zip(parts_THGD, step.prefills, prefill_masks, strict=True):
        # Expanded, not repeated: the heads of a group read the same memory.
        keys, values = cache_2RHCD[:, chunk.row, :, None, : chunk.stop].expand(-1, -1, query_THGD.shape[2], -1, -1)
        attended = F.scaled_dot_product_attention(
            query_THGD.permute(1, 2, 0, 3), keys, values, attn_mask=mask_TL[:, : chunk.stop], scale=scaling
        )
        outputs.append(attended.permute(2, 0, 1, 3))
    return torch.cat(outputs).flatten(1, 2)[None, ..., :value_size], None


def _attend_singles(query_SHGD: Tensor, cache_2RHCD: Tensor, step: Step, mask: Tensor, scaling: float) -> Tensor:
    """Attend for one token per sequence, with the G heads in place of query tokens; return [S, H, G, D]."""
    query_RHGD = query_SHGD.new_zeros(step.span, *query_SHGD.shape[1:]).index_copy(0, step.rows_S, query_SHGD)
    keys, values = cache_2RHCD[:, : step.span, :, : step.single_length]
    attended = F.scaled_dot_product_attention(query_RHGD, keys, values, attn_mask=mask, scale=scaling)
    return attended[step.rows_S]
