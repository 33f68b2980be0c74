"""Rows of the KV cache by their tokens, and the choice of a row for a new prompt.

A row is free, running (a request owns it) or parked (its request ended; the next turn of the same trajectory, whose prompt
begins with these tokens, takes it over). This file knows token ids only; keys and values are in `kv_cache`.
"""

from dataclasses import dataclass

import numpy as np

MIN_SHARED_TOKENS = 16
"""Tokens that a prompt must save to wait for a running row that is computing the same prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The row of a new prompt; its first `num_cached` tokens are copied from row `source` (often itself)."""

    row: int
    source: int
    num_cached: int


class PrefixRows:
    """Contents of the rows.

    `token_ids` is [rows, max tokens] int32. The first `num_tokens[row]` are valid, and the first `num_computed[row]` have their
    keys and values in the cache.
    """

    def __init__(self, *, num_rows: int, max_tokens: int) -> None:
        self.token_ids = np.zeros((num_rows, max_tokens), dtype=np.int32)
        self.num_tokens, self.num_computed, self._last_used = np.zeros((3, num_rows), dtype=np.int64)
        self.running = np.zeros(num_rows, dtype=bool)

    def place(self, prompt_ids: np.ndarray) -> Placement | None:
        """Return the row that saves a prompt most: a parked one, or the least recently used one with a copied prefix.

        None if every row runs, or a running row will soon have a longer common prefix. The last token of the prompt is never
        taken from the cache, as its logits are needed.
        """
        if self.running.all():
            return None
        differs = self.token_ids[:, : len(prompt_ids)] != prompt_ids
        common = np.where(differs.any(1), differs.argmax(1), len(prompt_ids)).clip(max=len(prompt_ids) - 1)
        cached = np.minimum(common, self.num_computed)
        if np.minimum(common, self.num_tokens).max() - cached.max() >= MIN_SHARED_TOKENS:
            return None
        covered = ~self.running & (cached == self.num_tokens)
        row = source = int((2 * cached + covered).argmax())
        if not covered[source]:
            row = int(np.where(self.running, np.iinfo(np.int64).max, self._last_used).argmin())
        self.token_ids[row, : len(prompt_ids)] = prompt_ids
        self.num_tokens[row] = len(prompt_ids)
        self.num_computed[row] = cached[source]
        self.running[row] = True
        return Placement(row=row, source=source, num_cached=int(cached[source]))

    def append(self, row: int, token_id: int) -> None:
        """Append a sampled token; its keys and values are not computed yet."""
        self.token_ids[row, self.num_tokens[row]] = token_id
        self.num_tokens[row] += 1

    def release(self, row: int) -> None:
        """Park the row with its computed tokens."""
        self.running[row] = False
        self.num_tokens[row] = self.num_computed[row]
        self._last_used[row] = self._last_used.max() + 1

    def invalidate(self) -> None:
        """Drop all keys and values: running rows restart at their first token, parked ones become free."""
        self.num_computed[:] = 0
        self.num_tokens[~self.running] = 0
