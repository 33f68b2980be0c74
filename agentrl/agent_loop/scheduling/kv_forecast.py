"""Forecast of the KV memory that running trajectories will need, from the lengths of finished ones.

A trajectory grows with time and ends at an unknown length. The age of a running one gives its approximate length now; the
finished ones give the probability that a trajectory of this length continues.
"""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUM_BINS = 64
"""Number of bins for lengths; one bin is one step of the forecast."""
_WINDOW = 4096
"""Number of finished trajectories kept; older ones come from an older policy."""
_NUM_ASSUMED = 8.0
"""Assumed trajectories of maximum length, because the first few that finish say little about the others."""
_RATE_DECAY = 0.98
"""Weight that a trajectory's tokens per second keep when the next one has finished: engines slow down as they fill."""
_MARGIN = 1.5
"""Standard deviations of the total length by which the forecast is raised."""

Floats = NDArray[np.float64]


class KvForecast:
    """Learns lengths from finished trajectories and forecasts those of running ones.

    The probability to continue is the Kaplan-Meier estimate (doi:10.2307/2281868). Running trajectories count up to their
    present age; otherwise short ones, which finish first, would be over-represented. Without any data, all are assumed to
    reach the maximum length.
    """

    def __init__(self, max_tokens: int) -> None:
        """Take the maximum length of a response, observations included."""
        self._bin_tokens = max_tokens / _NUM_BINS
        self._ends: deque[int] = deque()
        """Bins of finished trajectories, the oldest first."""
        self._num_ends = np.zeros(_NUM_BINS)
        self._tokens = self._seconds = 0.0
        """Tokens and seconds of recently finished trajectories, with decaying weights."""
        self._growth: _Growth | None = None

    def learn(self, num_tokens: int, duration_s: float) -> None:
        """Record the response tokens and the duration of a trajectory that ended normally."""
        self._tokens = _RATE_DECAY * self._tokens + num_tokens
        self._seconds = _RATE_DECAY * self._seconds + duration_s
        # The bin follows from the duration, as for running trajectories, whose token counts are unknown.
        end = int(self._bins(np.array([duration_s]))[0])
        self._ends.append(end)
        self._num_ends[end] += 1
        if len(self._ends) > _WINDOW:
            self._num_ends[self._ends.popleft()] -= 1
        self._growth = None

    @property
    def is_out_of_date(self) -> bool:
        """True if `renew` must be called before `peak_tokens`."""
        return self._growth is None

    def renew(self, ages_s: Floats) -> None:
        """Update the estimate with the ages of all running trajectories, on any engine."""
        self._growth = _Growth(self._num_ends, self._count(ages_s), self._bin_tokens)

    def peak_tokens(self, ages_s: Floats, prompt_tokens: int) -> float:
        """Return the largest number of tokens that the trajectories of one engine will hold at once; call `renew` first.

        `ages_s` has one age per trajectory, `prompt_tokens` is the sum over their prompts.
        """
        assert self._growth is not None, "`renew` comes first"
        return self._growth.peak_tokens(self._count(ages_s), prompt_tokens / max(1, len(ages_s)))

    def _count(self, ages_s: Floats) -> NDArray[np.int64]:
        return np.bincount(self._bins(ages_s), minlength=_NUM_BINS)

    def _bins(self, ages_s: Floats) -> NDArray[Any]:
        tokens_per_s = self._tokens / self._seconds if self._seconds else 0.0
        return np.minimum(_NUM_BINS - 1, ages_s * (tokens_per_s / self._bin_tokens)).astype(np.int64)


class _Growth:
    """Expected growth of a trajectory of each length. Shapes: [S steps ahead, L its length now], both in bins."""

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
