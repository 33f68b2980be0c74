"""News of the runs: their files are read once a second while a page is open, and every page hears what changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Any

import orjson

from agentrl.dashboard.runs import Run

_POLL_S = 1.0
_KEEP_ALIVE_S = 15.0
"""Time after which a silent stream sends a comment, so that proxies keep it open."""


class LiveRuns:
    """State of all runs, for any number of streams."""

    def __init__(self, runs: dict[str, Run]) -> None:
        self._runs = runs
        self._changed = asyncio.Condition()
        self._version = 0
        self._is_closed = False
        self._num_streams = 0
        self._watch: asyncio.Task[None] | None = None

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the state of each run as plain data."""
        return [
            {"key": run.key, "num_steps": run.num_steps, "is_indexing": run.is_indexing, **asdict(run.state)}
            for run in self._runs.values()
        ]

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        async with self._changed:
            self._changed.notify_all()

    async def stream(self, is_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Yield the state as server-sent events, now and after each change, until the reader is gone."""
        self._num_streams += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._read_files())
        seen = -1
        try:
            while not self._is_closed and not await is_gone():
                if seen == self._version:
                    try:
                        async with asyncio.timeout(_KEEP_ALIVE_S), self._changed:
                            await self._changed.wait_for(lambda seen=seen: self._is_closed or self._version != seen)
                    except TimeoutError:
                        yield b": still there\n\n"
                        continue
                seen = self._version
                yield b"data: " + orjson.dumps(self.snapshot()) + b"\n\n"
        finally:
            self._num_streams -= 1

    async def _read_files(self) -> None:
        before = self.snapshot()
        while self._num_streams and not self._is_closed:
            await asyncio.gather(*(run.update() for run in self._runs.values()))
            now = self.snapshot()
            if now != before:
                before = now
                self._version += 1
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(_POLL_S)
