"""Which tokens each row of the KV cache holds, and which row a new prompt should get.

A row is free, running (a request owns it) or parked (its request ended; the next turn of the same trajectory, whose
prompt begins with these tokens, takes it over). Knows token ids only; the numbers live in `kv_cache`.
"""

from dataclasses import dataclass

import numpy as np

MIN_SHARED_TOKENS = 16
"""A prompt waits one step for a neighbour that is just computing the same prefix if it saves at least so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The row for a new prompt: its first `num_cached` tokens are to be copied from row `source` (often itself)."""

    row: int
    source: int
    num_cached: int


class PrefixRows:
    """The ledger of the rows.

    `token_ids` [rows, max tokens] int32, of which the first `num_tokens[row]` count and the first `num_computed[row]`
    have their keys and values in the cache.
    """

    def __init__(self, *, num_rows: int, max_tokens: int) -> None:
        self.token_ids = np.zeros((num_rows, max_tokens), dtype=np.int32)
        self.num_tokens = np.zeros(num_rows, dtype=np.int64)
        self.num_computed = np.zeros(num_rows, dtype=np.int64)
        self.running = np.zeros(num_rows, dtype=bool)
        self._stale = np.zeros(num_rows, dtype=bool)
        self._last_used = np.zeros(num_rows, dtype=np.int64)
        self._clock = 0

    def place(self, prompt_ids: np.ndarray) -> Placement | None:
        """Find the row that saves most: take over a parked row, or copy a prefix into the least recently used one.

        Returns None when every row runs, or when a running row is about to have computed a longer common prefix.
        The last token of the prompt is never cached, as its logits are wanted.
        """
        if self.running.all():
            return None
        differs = self.token_ids[:, : len(prompt_ids)] != prompt_ids
        common = np.where(differs.any(1), differs.argmax(1), len(prompt_ids))
        common = np.where(self._stale, 0, common).clip(max=len(prompt_ids) - 1)
        cached = np.minimum(common, self.num_computed)
        if np.minimum(common, self.num_tokens).max() - cached.max() >= MIN_SHARED_TOKENS:
            return None
        covered = ~self.running & (cached == self.num_tokens)
        source = int((2 * cached + covered).argmax())
        row = source
        if not covered[source]:
            row = int(np.where(self.running, np.iinfo(np.int64).max, self._last_used).argmin())
        return Placement(row=row, source=source, num_cached=int(cached[source]))

    def occupy(self, placement: Placement, prompt_ids: np.ndarray) -> None:
        """Give the row to a request with this prompt."""
        row = placement.row
        self.token_ids[row, : len(prompt_ids)] = prompt_ids
        self.num_tokens[row] = len(prompt_ids)
        self.num_computed[row] = placement.num_cached
        self.running[row] = True
        self._stale[row] = False

    def append(self, row: int, token_id: int) -> None:
        """Add a sampled token, which has no keys and values yet."""
        self.token_ids[row, self.num_tokens[row]] = token_id
        self.num_tokens[row] += 1

    def release(self, row: int) -> None:
        """Park the row with what is computed of it, or free it where older weights have computed it."""
        self._clock += 1
        self.running[row] = False
        if self._stale[row]:
            self.free(row)
        else:
            self.num_tokens[row] = self.num_computed[row]
            self._last_used[row] = self._clock

    def free(self, row: int) -> None:
        """Forget what the row holds."""
        self.running[row] = self._stale[row] = False
        self.num_tokens[row] = self.num_computed[row] = self._last_used[row] = 0

    def invalidate(self) -> None:
        """Make sure that nothing computed so far is ever reused for another prompt."""
        for row in np.flatnonzero(~self.running):
            self.free(int(row))
        self._stale[:] = self.running

    def restart(self, row: int) -> None:
        """Compute a running row from its first token again."""
        self.num_computed[row] = 0
        self._stale[row] = False

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        for column in (
            self.token_ids, self.num_tokens, self.num_computed, self.running, self._stale, self._last_used,
        ):  # fmt: skip
            column[[a, b]] = column[[b, a]]
