"""Detection of stop strings in a completion."""

from collections.abc import Callable, Sequence
from functools import cache

_MARGIN_TOKENS = 8
"""Extra tokens decoded before the string: a decoder may change the first ones, or split a character."""


class StopStrings:
    """Checks the end of a completion after each token; a stop string may begin and end inside tokens."""

    def __init__(self, decoder: Callable[[], Callable[[Sequence[int]], str]]) -> None:
        """Take a function that returns, at first use, the decoder of token ids, special tokens included."""
        self._decoder = cache(decoder)

    def reached(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Return whether the text of the last tokens holds one of `stop`."""
        if not stop:
            return False
        longest = max(len(text.encode()) for text in stop)  # a token has at least one byte
        text = self._decoder()(token_ids[-(longest + _MARGIN_TOKENS) :])
        return any(string in text for string in stop)


def end_of_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the index after the stop string that is complete first in `text`; None without a match."""
    ends = [index + len(string) for string in stop if (index := text.find(string)) >= 0]
    return min(ends, default=None)
