"""Long work in the event loop, in pieces between which others have their turn."""

import asyncio
import time

_TURN_S = 0.02


class Pace:
    """How long a piece of work has had the event loop; `keep` is to be called after each step."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def keep(self) -> None:
        """Let others have a turn, if this work has had its own."""
        if time.perf_counter() - self._since > _TURN_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
