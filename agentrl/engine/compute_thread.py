"""The one thread that runs the model, so that the event loop never waits for it."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import torch

from agentrl.errors import AgentRLError, EngineError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Work(Protocol):
    """What the thread does between calls."""

    def tick(self) -> float | None:
        """Do one step; return how long the thread may sleep in seconds: 0 for not at all, None until it is called."""
        ...


class ComputeThread:
    """Runs `work.tick()` while there is work, and calls from outside between two ticks, in the order they came.

    If either raises anything but an `AgentRLError`, that is a bug: the thread ends, and every open and later call gets
    an `EngineError` with the cause.
    """

    def __init__(self) -> None:
        self.work: Work | None = None
        """Set by the first call, which builds it on the thread."""
        self._condition = threading.Condition()
        self._inbox: list[tuple[Callable[[Future[Any]], None], Future[Any]]] = []
        self._open: set[Future[Any]] = set()
        self._cause: BaseException | None = None
        self._closing = False
        self._woken = False
        self._thread = threading.Thread(target=self._run, name="agentrl-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, call: Callable[[Future[T]], None]) -> Future[T]:
        """Have `call` run on the thread; it, or something that it leaves behind, resolves the future that it is given.

        Raises:
            EngineError: the thread has ended.
        """
        future: Future[T] = Future()
        with self._condition:
            if self._closing:
                raise self._ended()
            self._open.add(future)
            self._inbox.append((call, future))
            self._wake()
        future.add_done_callback(self._forget)
        return future

    def run(self, function: Callable[[], T]) -> Future[T]:
        """Have `function` run on the thread; the future holds what it returns."""

        def call(future: Future[T]) -> None:
            result = function()
            if future.set_running_or_notify_cancel():
                future.set_result(result)

        return self.submit(call)

    def close(self) -> None:
        """End the thread after the current tick and wait for it; open calls get an `EngineError`."""
        with self._condition:
            self._closing = True
            self._wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _forget(self, future: Future[Any]) -> None:
        with self._condition:
            self._open.discard(future)
            self._wake()  # it may have been cancelled, and the work holds memory for it

    def _wake(self) -> None:
        self._woken = True
        self._condition.notify()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._loop()
        except BaseException as error:
            logger.exception("engine: the compute thread died")
            self._cause = error
        with self._condition:
            self._closing = True
            orphans = list(self._open)
        for future in orphans:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._ended())

    def _loop(self) -> None:
        sleep_s: float | None = 0.0
        while True:
            with self._condition:
                if not self._woken and sleep_s != 0.0:
                    self._condition.wait(sleep_s)
                if self._closing:
                    return
                self._woken = False
                inbox, self._inbox = self._inbox, []
            for call, future in inbox:
                try:
                    call(future)
                except AgentRLError as error:
                    if future.set_running_or_notify_cancel():
                        future.set_exception(error)
            sleep_s = self.work.tick() if self.work else None

    def _ended(self) -> EngineError:
        if self._cause is None:
            return EngineError("engine: it was closed")
        error = EngineError(f"engine: the compute thread died of {type(self._cause).__name__}: {self._cause}")
        error.__cause__ = self._cause
        return error
