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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The new tokens `[start, stop)` of a sequence with several of them."""

    row: int
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class KVCache:
    """Per layer, keys and values [R, H, C, D]; C grows by doubling, so a short task never pays for a long context."""

    num_rows: int
    max_tokens: int
    keys: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def store(self, layer: int, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, step: "Step") -> None:
        """Write the keys and values of the step's tokens."""
        for buffers, new_NHD in ((self.keys, keys_NHD), (self.values, values_NHD)):
            buffer = buffers.get(layer)
            if buffer is None or buffer.shape[2] < step.max_length:
                buffer = buffers[layer] = self._grown(buffer, new_NHD, step.max_length)
            buffer[step.rows_N, :, step.positions_N] = new_NHD

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one row to another."""
        for buffer in (*self.keys.values(), *self.values.values()):
            buffer[target, :, :num_tokens] = buffer[source, :, :num_tokens]

    def swap(self, a: int, b: int, num_tokens: int) -> None:
        """Exchange the first tokens of two rows."""
        for buffer in (*self.keys.values(), *self.values.values()):
            saved = buffer[a, :, :num_tokens].clone()
            buffer[a, :, :num_tokens] = buffer[b, :, :num_tokens]
            buffer[b, :, :num_tokens] = saved

    def clear_row(self, row: int) -> None:
        """Zero a row: NaN in a masked position still spoils attention, as 0 * NaN is NaN."""
        for buffer in (*self.keys.values(), *self.values.values()):
            buffer[row].zero_()

    def drop(self) -> None:
        """Free the memory; the next step takes it again."""
        self.keys.clear()
        self.values.clear()

    def _grown(self, old: torch.Tensor | None, like_NHD: torch.Tensor, length: int) -> torch.Tensor:
        capacity = _FIRST_CAPACITY
        while capacity < length:
            capacity *= 2
        _, heads, dim = like_NHD.shape
        new = like_NHD.new_zeros(self.num_rows, heads, min(capacity, self.max_tokens), dim)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new


class Step:
    """Where the new tokens of one forward pass belong, with everything that all layers share."""

    def __init__(
        self,
        cache: KVCache,
        *,
        single_rows: Sequence[int],
        lengths: Sequence[int],
        chunks: Sequence[Chunk],
        device: str,
    ) -> None:
        """Lay out a step: first the single tokens, then the chunks.

        Args:
            cache: where the keys and values are.
            single_rows: [S] rows that get one new token.
            lengths: [S] their number of tokens, the new one included.
            chunks: rows that get several.
            device: of the model.
        """
        self.cache = cache
        self.chunks = chunks
        self.num_singles = len(single_rows)
        self.span = max(single_rows, default=-1) + 1
        self.max_single_length = max(lengths, default=0)
        self.max_length = max([self.max_single_length, *(c.stop for c in chunks)])
        rows, positions = list(single_rows), [n - 1 for n in lengths]
        for chunk in chunks:
            rows += [chunk.row] * (chunk.stop - chunk.start)
            positions += range(chunk.start, chunk.stop)
        self.rows_N = torch.tensor(rows, device=device)
        self.positions_N = torch.tensor(positions, device=device)
        singles_S = self.rows_N[: self.num_singles]
        # Rows in [:span] that get no token look at their first position, and nobody looks at what comes out.
        past_R = self.positions_N.new_zeros(self.span).index_copy(0, singles_S, self.positions_N[: self.num_singles])
        keys_L = torch.arange(self.max_length, device=device)
        self.single_mask = (keys_L[: self.max_single_length] <= past_R[:, None])[:, None, None]
        self.scatter_rows = None if list(single_rows) == list(range(self.num_singles)) else singles_S
        self.chunk_masks = [keys_L[: c.stop] <= torch.arange(c.start, c.stop, device=device)[:, None] for c in chunks]


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
    query_NQD = query[0].transpose(0, 1)
    heads, dim = keys_RHCD.shape[1], query_NQD.shape[2]
    outputs = []
    if step.num_singles:
        query_SHGD = query_NQD[: step.num_singles].reshape(step.num_singles, heads, -1, dim)
        outputs.append(_attend_singles(query_SHGD, keys_RHCD, values_RHCD, step, scaling).flatten(1, 2))
    start = step.num_singles
    for chunk, mask in zip(step.chunks, step.chunk_masks, strict=True):
        stop = start + chunk.stop - chunk.start
        query_HGTD = query_NQD[start:stop].transpose(0, 1).reshape(heads, -1, stop - start, dim)
        # Expanded, not repeated: the G query heads of a key-value head read the same memory.
        keys = keys_RHCD[chunk.row, :, None, : chunk.stop].expand(-1, query_HGTD.shape[1], -1, -1)
        values = values_RHCD[chunk.row, :, None, : chunk.stop].expand(-1, query_HGTD.shape[1], -1, -1)
        attended = scaled_dot_product_attention(query_HGTD, keys, values, attn_mask=mask, scale=scaling)
        outputs.append(attended.flatten(0, 1).transpose(0, 1))
        start = stop
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _attend_singles(
    query_SHGD: torch.Tensor, keys_RHCD: torch.Tensor, values_RHCD: torch.Tensor, step: Step, scaling: float
) -> torch.Tensor:
    """Attend for one token per sequence; the G heads that share keys stand in the place of G query tokens."""
    length, rows = step.max_single_length, step.scatter_rows
    if rows is not None:
        query_SHGD = query_SHGD.new_zeros(step.span, *query_SHGD.shape[1:]).index_copy(0, rows, query_SHGD)
    attended = scaled_dot_product_attention(
        query_SHGD,
        keys_RHCD[: step.span, :, :length],
        values_RHCD[: step.span, :, :length],
        attn_mask=step.single_mask,
        scale=scaling,
    )
    return attended if rows is None else attended[rows]
