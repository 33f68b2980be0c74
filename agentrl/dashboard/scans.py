"""Streams of what a scan of a run's texts finds, from a process that is ended in time."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import orjson

from agentrl.dashboard.scan import MAX_S

_MAX_SCANS = 4
"""Scans that run at once; further ones wait."""
_MAX_LINE_BYTES = 16 << 20


class Scans:
    """Starts scans, each in a process of its own."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_MAX_SCANS)

    async def lines(self, run_dir: Path, kind: str, pattern: str = "") -> AsyncGenerator[bytes]:
        """Yield the JSON lines of a scan; the process ends with them, after its time, or when the reader leaves."""
        request = {"run_dir": str(run_dir), "kind": kind, "pattern": pattern}
        async with self._places:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "agentrl.dashboard.scan",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=_MAX_LINE_BYTES,
                )
            )
            try:
                # Cancelled while it connects the pipes, asyncio would wait for ever.
                async for line in _answers(await asyncio.shield(starting), request):
                    yield line
            finally:
                process = await asyncio.shield(starting)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())


async def _answers(process: asyncio.subprocess.Process, request: dict[str, Any]) -> AsyncIterator[bytes]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    is_done = False
    process.stdin.write(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE))
    deadline = asyncio.get_running_loop().time() + MAX_S
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                line = await process.stdout.readline()
            if not line:
                break
            is_done = line.startswith((b'{"done"', b'{"error"'))
            yield line
        if not is_done:
            reason = (await process.stderr.read()).decode(errors="replace").strip().splitlines() or ["it was ended"]
            yield orjson.dumps({"error": f"scan: {reason[-1]}"}, option=orjson.OPT_APPEND_NEWLINE)
    except TimeoutError:
        yield orjson.dumps({"done": True, "timed_out_s": MAX_S}, option=orjson.OPT_APPEND_NEWLINE)
