"""Keys and values of the running and parked sequences, and attention over them.

transformers calls `attend` instead of its own attention for every layer of the model. All new tokens of a step, of all
sequences, lie behind each other in one packed row, so that no padding is ever computed. Sequences with one new token
(decoding) attend together, over the slice [:span] of the cache, without a gather; those with several (prefill) one by one.

Shapes: N new tokens, R rows of the cache, S sequences with one new token, Q query heads, H key-value heads, G = Q / H,
D head dimension, L tokens attended to, C capacity of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

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
        """Count the tokens."""
        return self.stop - self.start


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Per layer, keys and values [R, H, C, D]; C grows by doubling, so a short task never pays for a long context."""

    num_rows: int
    keys: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def store(self, layer: int, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, step: "Step") -> None:
        """Write the keys and values of the step's tokens."""
        for buffers, new_NHD in ((self.keys, keys_NHD), (self.values, values_NHD)):
            if layer not in buffers:
                _, heads, dim = new_NHD.shape
                buffers[layer] = new_NHD.new_zeros(self.num_rows, heads, _FIRST_CAPACITY, dim)
            while buffers[layer].shape[2] < step.max_length:
                buffers[layer] = torch.cat([buffers[layer], torch.zeros_like(buffers[layer])], dim=2)
            buffers[layer][step.rows_N, :, step.positions_N] = new_NHD

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one row to another."""
        for buffer in (*self.keys.values(), *self.values.values()):
            buffer[target, :, :num_tokens] = buffer[source, :, :num_tokens]

    def drop(self) -> None:
        """Free the memory; the next step takes it again."""
        self.keys.clear()
        self.values.clear()


class Step:
    """Where the new tokens of one forward pass belong, with everything that all layers share."""

    def __init__(self, cache: KVCache, chunks: Sequence[Chunk], device: str) -> None:
        """Lay out a step of `chunks`, of which those with a single token come first."""
        self.cache = cache
        self.num_singles = sum(len(chunk) == 1 for chunk in chunks)
        self.prefills = chunks[self.num_singles :]
        singles = chunks[: self.num_singles]
        rows = [row for chunk in chunks for row in [chunk.row] * len(chunk)]
        self.rows_N = torch.tensor(rows, device=device)
        self.positions_N = torch.tensor([p for c in chunks for p in range(c.start, c.stop)], device=device)
        self.rows_S = self.rows_N[: self.num_singles]
        self.span = max((chunk.row for chunk in singles), default=-1) + 1
        self.single_length = max((chunk.stop for chunk in singles), default=0)
        self.max_length = max(chunk.stop for chunk in chunks)
        # Rows in [:span] that get no token look at their first position, and nobody looks at what comes out.
        past_R = self.positions_N.new_zeros(self.span).index_copy(0, self.rows_S, self.positions_N[: self.num_singles])
        keys_L = torch.arange(self.max_length, device=device)
        self.single_mask = (keys_L[: self.single_length] <= past_R[:, None])[:, None, None]
        self.prefill_masks = [keys_L[: c.stop] <= keys_L[c.start : c.stop, None] for c in self.prefills]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    step: Step,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values, and attend over the cache (a transformers attention function).

    Args:
        module: the attention layer.
        query: [1, Q, N, D].
        key: [1, H, N, D].
        value: [1, H, N, D].
        attention_mask: not used: the step knows who may look where.
        scaling: of the scores.
        step: passed to the model's forward, which hands it down.
        **kwargs: what else the model asks for.

    Returns:
        [1, N, Q, D], and None for the attention weights.

    Raises:
        ConfigError: the model needs more than causal attention over the whole past.
    """
    for name in ("sliding_window", "softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ConfigError(f"`model.path`: the embedded engine has no attention with `{name}`: use another engine")
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]  # every attention layer has one
    step.cache.store(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), step)
    keys_RHCD, values_RHCD = step.cache.keys[layer], step.cache.values[layer]
    # The G query heads that share a key-value head stand beside it.
    query_NHGD = query[0].transpose(0, 1).unflatten(1, (keys_RHCD.shape[1], -1))
    outputs = [_attend_singles(query_NHGD[: step.num_singles], keys_RHCD, values_RHCD, step, scaling)]
    start = step.num_singles
    for chunk, mask in zip(step.prefills, step.prefill_masks, strict=True):
        query_HGTD = query_NHGD[start : start + len(chunk)].permute(1, 2, 0, 3)
        # Expanded, not repeated: they read the same memory.
        keys, values = (
            buffer[chunk.row, :, None, : chunk.stop].expand(-1, query_HGTD.shape[1], -1, -1)
            for buffer in (keys_RHCD, values_RHCD)
        )
        attended = scaled_dot_product_attention(query_HGTD, keys, values, attn_mask=mask, scale=scaling)
        outputs.append(attended.permute(2, 0, 1, 3))
        start += len(chunk)
    return torch.cat(outputs).flatten(1, 2)[None], None


def _attend_singles(
    query_SHGD: torch.Tensor, keys_RHCD: torch.Tensor, values_RHCD: torch.Tensor, step: Step, scaling: float
) -> torch.Tensor:
    """Attend for one token per sequence, with the G heads in the place of G query tokens; returns [S, H, G, D]."""
    if not step.num_singles:
        return query_SHGD
    query_RHGD = query_SHGD.new_zeros(step.span, *query_SHGD.shape[1:]).index_copy(0, step.rows_S, query_SHGD)
    keys, values = (buffer[: step.span, :, : step.single_length] for buffer in (keys_RHCD, values_RHCD))
    attended = scaled_dot_product_attention(query_RHGD, keys, values, attn_mask=step.single_mask, scale=scaling)
    return attended[step.rows_S]
