"""How long responses are, learnt from those that have finished without taking the short ones, which finish first, for all."""

from collections import deque

_MIN_KNOWN = 32
"""Responses from which on their lengths say something."""
_WINDOW = 4096
"""Older ones are of another policy."""
_MIN_FINISHED_SHARE = 0.9


class ResponseLengths:
    """The lengths of responses in the order in which they started.

    Those that started first count, as many as there are of which nine tenths have finished; what still runs of them counts with
    the longest that it may get.
    """

    def __init__(self, max_tokens: int) -> None:
        """Take the length that no response exceeds."""
        self._max_tokens = max_tokens
        self._lengths: deque[int | None] = deque()
        """Of those that started in the window; None: it still runs."""
        self._first = 0
        """Number of the first in the window."""
        self.num_started = 0
        self._num_known = 0
        """Of the window: how many count."""
        self._num_known_running = 0
        self._sums = [0.0, 0.0, 0.0]
        """Of the first three powers of the lengths that count."""

    def start(self) -> None:
        """Note that a response starts; its number is how many had started before."""
        self._lengths.append(None)
        self.num_started += 1
        if len(self._lengths) > _WINDOW:
            self._forget_first()

    def finish(self, number: int, num_tokens: int) -> None:
        """Note the length of a response, observations included."""
        index = number - self._first
        if index < 0 or self._lengths[index] is not None:
            return
        self._lengths[index] = num_tokens
        if index < self._num_known:
            self._num_known_running -= 1
            self._count(self._max_tokens, -1)
            self._count(num_tokens, 1)
        self._take_more()

    def held_tokens(self) -> tuple[float, float] | None:
        """Return mean and variance of the tokens that a running response holds; nothing before enough are known.

        Lengths L of those that run are biased to the long ones, and a moment falls anywhere in their life: the mean of what
        they hold is E[L^2] / 2E[L], that of its square E[L^3] / 3E[L] (renewal theory). Where all began together and grow
        together, they come to hold E[L]: the larger counts.
        """
        if self._num_known < _MIN_KNOWN:
            return None
        first, second, third = (total / self._num_known for total in self._sums)
        mean = second / (2 * first)
        return max(mean, first), max(0.0, third / (3 * first) - mean**2)

    def _take_more(self) -> None:
        """Let those count that started next, while nine tenths of all that count have finished."""
        while self._num_known < len(self._lengths):
            length = self._lengths[self._num_known]
            running = self._num_known_running + (length is None)
            if running > (1 - _MIN_FINISHED_SHARE) * (self._num_known + 1):
                return
            self._num_known += 1
            self._num_known_running = running
            self._count(self._max_tokens if length is None else length, 1)

    def _forget_first(self) -> None:
        length = self._lengths.popleft()
        self._first += 1
        if self._num_known:
            self._num_known -= 1
            self._num_known_running -= length is None
            self._count(self._max_tokens if length is None else length, -1)

    def _count(self, num_tokens: int, sign: int) -> None:
        for power in range(3):
            self._sums[power] += sign * max(1.0, float(num_tokens)) ** (power + 1)
