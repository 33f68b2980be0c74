"""Questions to Ray, asked again and again as long as a context lasts.

Ray has no public call for any of them: `ray.util.state` needs a dashboard, which the run's own Ray does without.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ray._private.state import state

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ANSWER_TIMEOUT_S = 5.0


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the resources that are not reserved, keyed by node id."""
    return state.available_resources_per_node()


def actor_info(actor_id: str) -> Mapping[str, Any]:
    """Return Ray's record of an actor, such as its `State`, `Address` and `NumRestarts`; empty if it is unknown."""
    return state.actor_table(actor_id)


async def ask_ray(look: Callable[[], T]) -> T:
    """Call `look` in a thread; a cancellation waits for it, since Ray must not be asked while it shuts down."""
    answer = asyncio.ensure_future(asyncio.to_thread(look))
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        await asyncio.wait({answer}, timeout=_ANSWER_TIMEOUT_S)
        raise


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
