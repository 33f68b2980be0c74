"""A cache of compilations: equal sources are compiled once, and never twice at the same time.

It is in the server's memory only: no program can reach it, and it ends with the server.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from code_judge_server.sandbox.executor import Outcome

_ENTRY_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """Result of a compiler."""

    outcome: Outcome
    artifact: bytes | None
    """None if the compiler made no program."""
    is_lasting: bool
    """The same source will always end in the same way, so the result may be cached."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of a cached result."""
        texts = len(self.outcome.stdout) + len(self.outcome.stderr)
        return len(self.artifact or b"") + texts + _ENTRY_OVERHEAD_BYTES


@dataclass(slots=True, kw_only=True)
class _Running:
    task: asyncio.Future[Compilation]
    num_waiting: int = 0


class CompileCache:
    """Compilations by key, in `max_bytes`, the least recently used dropped first; simultaneous requests for a key share one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Compilation] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[bytes, _Running] = {}

    @property
    def size_bytes(self) -> int:
        """Memory in use."""
        return self._kept_bytes

    async def get(self, key: bytes, compile_: Callable[[], Awaitable[Compilation]]) -> Compilation:
        """Return the compilation cached under `key`, else the result of `compile_`, called once for all callers that wait.

        Cancelling the call cancels the compilation if no other caller waits for it.
        """
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(task=asyncio.ensure_future(self._compile(key, compile_)))
        running.num_waiting += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.num_waiting -= 1
            if running.num_waiting == 0 and not running.task.done():
                del self._running[key]  # at once: the next caller must not wait for a cancelled compilation
                running.task.cancel()

    async def _compile(self, key: bytes, compile_: Callable[[], Awaitable[Compilation]]) -> Compilation:
        own = asyncio.current_task()
        try:
            compilation = await compile_()
        finally:
            if key in self._running and self._running[key].task is own:  # an abandoned task is no longer in there
                del self._running[key]
        if compilation.is_lasting:
            self._keep(key, compilation)
        return compilation

    def _keep(self, key: bytes, compilation: Compilation) -> None:
        if compilation.size_bytes > self._max_bytes or key in self._kept:
            return
        self._kept[key] = compilation
        self._kept_bytes += compilation.size_bytes
        while self._kept_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size_bytes
