"""An event loop in a separate thread, for a tool or a reward of the user's, whose code may block."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.observability.loop_lag import LoopLag
from agentrl.user_code import contained_coroutine

T = TypeVar("T")


class ToolThread:
    """Runs the coroutines of one tool on one loop, so that they may share sessions and locks."""

    def __init__(self, name: str) -> None:
        """Take the name for messages; the thread starts with the first coroutine."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine; cancelling the future cancels it, and all that it raises is an `Exception`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.call_soon_threadsafe(LoopLag, self._name)  # its task ends with the loop
            # A daemon: a call that never returns must not keep the process alive.
            threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True).start()
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(contained_coroutine(coroutine), self._loop))

    def close(self) -> None:
        """End the thread as soon as nothing blocks it."""
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(loop.stop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._run(loop)
        while self._loop is loop:
            self._run(loop)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.stop)
        self._run(loop)
        loop.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio lets these end the loop if a task of the user's raises them.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
