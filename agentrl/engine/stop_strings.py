"""Stop strings: whether the newest token of a completion completes one of them."""

from collections.abc import Callable, Sequence
from functools import cache

_MARGIN_TOKENS = 8
"""Tokens decoded before those that can hold the string: a decoder may change the first ones, or a character cut in two."""


class StopStrings:
    """Looks at the end of a completion after each token; the stop string may begin and end inside tokens."""

    def __init__(self, decoder: Callable[[], Callable[[Sequence[int]], str]]) -> None:
        """Take what gives, at first use, the function that turns token ids into text, special tokens included."""
        self._decoder = cache(decoder)

    def reached(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Return whether the text of the last tokens holds one of `stop`; a token has at least one byte of it."""
        if not stop:
            return False
        longest = max(len(text.encode()) for text in stop)
        text = self._decoder()(token_ids[-(longest + _MARGIN_TOKENS) :])
        return any(string in text for string in stop)


def end_of_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the index behind the stop string that is complete first in `text`; None where there is none."""
    ends = [index + len(string) for string in stop if (index := text.find(string)) >= 0]
    return min(ends, default=None)
