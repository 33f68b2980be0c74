"""Long work in the event loop, in pieces, between which other tasks run."""

import asyncio
import time

_TURN_S = 0.02


class Pace:
    """Time for which some work has held the event loop; `keep` must be called after each step."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def keep(self) -> None:
        """Yield to other tasks if this work has used up its time."""
        if time.perf_counter() - self._since > _TURN_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
