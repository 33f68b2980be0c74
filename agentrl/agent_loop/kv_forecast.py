"""How much KV memory the trajectories on an engine will come to hold, foreseen from those that have finished.

A trajectory grows as time passes, and ends at a length that nobody knows. Of one that runs it is known for how long it has, and
so about how many tokens it holds; of all it is known how often one that had come so far went on.
"""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUM_BINS = 64
"""Into which lengths are sorted; each is one step of the forecast."""
_WINDOW = 4096
"""Older lengths are of another policy."""
_NUM_ASSUMED = 8.0
"""Trajectories that are taken to have become as long as they may: the end of the first few says little about the others."""
_RATE_DECAY = 0.98
"""Weight that a trajectory's tokens per second keep when the next one has finished: engines slow down as they fill."""
_MARGIN = 1.5
"""Standard deviations, of the chance with which each trajectory goes on, by which the forecast is raised."""

Floats = NDArray[np.float64]


class KvForecast:
    """Learns from trajectories that finish, and foresees what those that run will hold.

    The chance to go on is the Kaplan-Meier estimate (doi:10.2307/2281868). Those that still run count for as long as they have
    run, so that the short ones, which finish first, are not taken for all. Where nothing is known yet all go on to the end.
    """

    def __init__(self, max_tokens: int) -> None:
        """Take the length that no response exceeds, observations included."""
        self._bin_tokens = max_tokens / _NUM_BINS
        self._ends: deque[int] = deque()
        """Bins of those that finished, the oldest first."""
        self._num_ends = np.zeros(_NUM_BINS)
        self._tokens = self._seconds = 0.0
        """Of those that finished lately."""
        self._growth: _Growth | None = None

    def learn(self, num_tokens: int, duration_s: float) -> None:
        """Note the response tokens of a trajectory that finished by itself, and the time that it took."""
        self._tokens = _RATE_DECAY * self._tokens + num_tokens
        self._seconds = _RATE_DECAY * self._seconds + duration_s
        # By its time, as those that run: how many tokens it had all the while is not known of them either.
        end = int(self._bins(np.array([duration_s]))[0])
        self._ends.append(end)
        self._num_ends[end] += 1
        if len(self._ends) > _WINDOW:
            self._num_ends[self._ends.popleft()] -= 1
        self._growth = None

    @property
    def is_out_of_date(self) -> bool:
        """Whether `renew` is due."""
        return self._growth is None

    def renew(self, ages_s: Floats) -> None:
        """Take in for how long all trajectories have run that run now, on any engine."""
        self._growth = _Growth(self._num_ends, self._count(ages_s), self._bin_tokens)

    def peak_tokens(self, ages_s: Floats, prompt_tokens: int) -> float:
        """Return the most that trajectories of one engine will hold at once, after `renew`.

        Args:
            ages_s: for how long each has run.
            prompt_tokens: of all their prompts.
        """
        assert self._growth is not None, "`renew` comes first"
        return self._growth.peak_tokens(self._count(ages_s), prompt_tokens / max(1, len(ages_s)))

    def _count(self, ages_s: Floats) -> NDArray[np.int64]:
        return np.bincount(self._bins(ages_s), minlength=_NUM_BINS)

    def _bins(self, ages_s: Floats) -> NDArray[Any]:
        tokens_per_s = self._tokens / self._seconds if self._seconds else 0.0
        return np.minimum(_NUM_BINS - 1, ages_s * (tokens_per_s / self._bin_tokens)).astype(np.int64)


class _Growth:
    """What becomes of a trajectory of each length. Shapes: [S steps ahead, L its length now], both in bins."""

    def __init__(self, num_ends: Floats, num_running: NDArray[np.int64], bin_tokens: float) -> None:
        came_so_far = np.cumsum((num_ends + num_running)[::-1])[::-1] + _NUM_ASSUMED
        goes_on = np.concatenate([[1.0], np.cumprod(1 - num_ends / came_so_far)])
        steps_S, now_L = np.arange(_NUM_BINS + 1)[:, None], np.arange(_NUM_BINS)[None, :]
        then_SL = steps_S + now_L
        reached_SL = np.minimum(then_SL, _NUM_BINS)
        self._alive_SL = np.where(then_SL <= _NUM_BINS, goes_on[reached_SL] / goes_on[now_L], 0.0)
        tokens_SL = reached_SL * bin_tokens
        self._mean_SL = self._alive_SL * tokens_SL
        self._variance_SL = self._alive_SL * (1 - self._alive_SL) * tokens_SL**2

    def peak_tokens(self, count_L: NDArray[np.int64], prompt_tokens: float) -> float:
        mean_S = self._mean_SL @ count_L + prompt_tokens * (self._alive_SL @ count_L)
        return float(np.max(mean_S + _MARGIN * np.sqrt(self._variance_SL @ count_L)))
