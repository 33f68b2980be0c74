"""Calls of tools and rewards, which may be user code: an event loop in a separate thread, time limits and errors."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, RolloutError, UnexplainedError
from agentrl.observability.loop_lag import LoopLag
from agentrl.user_code import START_TIMEOUT_S, contained_coroutine, described, text_of

logger = logging.getLogger(__name__)
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


async def finished(task: asyncio.Future[T], limit_s: float) -> asyncio.Future[T] | None:
    """Wait for a task and return it; if it takes longer than `limit_s`, cancel it and return None.

    `asyncio.timeout` would wait until the task has handled the cancellation, which a broken one may never do.
    """
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    finally:
        if not task.done():
            task.add_done_callback(_log_late_failure)
            task.cancel()
    return task if done else None


async def finish_start(task: asyncio.Future[None], where: str, *, error_class: type[AgentRLError]) -> None:
    """Wait for the `start` of a tool or a reward.

    Raises:
        error_class: it did not return in time, or raised an unexpected exception; an `AgentRLError` passes.
    """
    ended = await finished(task, START_TIMEOUT_S)
    if ended is None:
        raise error_class(
            f"{where}: `start` did not return in {START_TIMEOUT_S:g} s; load what takes longer when it is first called"
        )
    if ended.cancelled():
        raise error_class(f"{where}: cannot be started: `start` cancelled itself")
    try:
        ended.result()
    except AgentRLError:
        raise
    except Exception as error:
        raise error_class(f"{where}: cannot be started: {described(error)}") from error


def result_of(task: asyncio.Future[T], where: str) -> T:
    """Return the result of a call that has ended.

    Raises:
        AgentRLError: the call raised it.
        RolloutError: the call raised an `OSError`, or cancelled itself.
        UnexplainedError: the call raised another exception.
    """
    try:
        return task.result()
    except AgentRLError:
        raise
    except asyncio.CancelledError:
        raise RolloutError(f"{where}: the call cancelled itself") from None
    except OSError as error:
        raise RolloutError(f"{where}: {type(error).__name__}: {text_of(error)}") from error
    except Exception as error:
        raise UnexplainedError.of(where, error) from error


def _log_late_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("user code: failed after its time limit", exc_info=error)
