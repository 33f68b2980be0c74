"""An event loop that does not wait: where all tasks sleep, its clock jumps to the first that wakes up."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from agentrl import clock

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock starts at 0 and moves by timers alone, once nothing is left to do, in no thread either.

    What waits for another process finds no time passing as long as there are timers: nothing of that kind may run here.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_in_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self.now_s

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run in a real thread, for which the clock stands still."""
        future = super().run_in_executor(executor, func, *args)
        self.num_in_threads += 1
        future.add_done_callback(self._note_returned)
        return future

    def _note_returned(self, _: asyncio.Future[Any]) -> None:
        self.num_in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.num_in_threads:
            return super().select(None if timeout != 0 else 0)
        ready = super().select(0)
        if not ready:
            self._loop.now_s += timeout
        return ready


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a loop of its own, with `agentrl.clock` on the loop's time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        with clock.reading(loop.time):
            return runner.run(main)
