"""SIGINT and SIGTERM in a command that computes in its own thread: they end it at once, or where it says that it can end."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalledError(BaseException):
    """A signal ended the command; no `except Exception` on the way may hold it up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopRequest:
    """A context manager that turns the signals into `SignalledError`.

    Example:
        with StopRequest() as stop:
            load()                                # a signal ends it here
            with stop.deferred():
                while more and not stop.requested:
                    step()                        # ... and here only between two steps; a second signal at once
                save()
    """

    def __init__(self) -> None:
        self.requested = False
        """True once a signal came inside `deferred`."""
        self._number = 0
        self._is_deferred = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note a signal inside; the end of the context raises what was noted.

        Raises:
            SignalledError: a signal came, or a second one, for which nothing waits.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.requested:
            raise SignalledError(self._number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_deferred or self.requested:
            raise SignalledError(number)
        self.requested, self._number = True, number
        logger.info("%s: stopping; a second one does not wait for the checkpoint", signal.Signals(number).name)
