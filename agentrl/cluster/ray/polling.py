"""A background task that polls something as long as a context lasts."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def watching(watch: Coroutine[Any, Any, None], *, what: str) -> AsyncIterator[None]:
    """Run the endless coroutine `watch` as long as the context lasts; `what` names its subject in the log."""
    task = asyncio.create_task(watch)

    def report_bug(ended: asyncio.Task[None]) -> None:
        # Nobody awaits the task before the end, so its failure would go unnoticed.
        if not ended.cancelled() and (error := ended.exception()):
            logger.error("%s: no longer watched, which is a bug", what, exc_info=error)

    task.add_done_callback(report_bug)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
