"""Looking at something again and again, beside what else goes on."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def watching(watch: Coroutine[Any, Any, None], *, what: str) -> AsyncIterator[None]:
    """Run `watch`, which does not end by itself, for as long as the context lasts; `what` it looks at is for the log."""
    task = asyncio.create_task(watch)

    def note_bug(ended: asyncio.Task[None]) -> None:
        # Nobody awaits it before the end, so that without this its death would go unnoticed until then.
        if not ended.cancelled() and (error := ended.exception()):
            logger.error("%s: nobody looks at them any more, which is a bug", what, exc_info=error)

    task.add_done_callback(note_bug)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
