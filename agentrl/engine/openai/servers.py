"""Selection among equal servers.

A failed server is dropped until it passes the examination of the start again: it may have come back as another program, or with
another model. A full server is skipped for as long as it asks.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.engine.openai.protocol import BrokenError, BusyError, NotAnsweredError
from agentrl.errors import EngineError

logger = logging.getLogger(__name__)

_FIRST_BACK_OFF_S = 0.1
_MAX_BACK_OFF_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """State of one server; times are of `time.monotonic`."""

    base_url: str
    model: str = ""
    """Name under which it serves the policy; set by the examination."""
    max_tokens: int | None = None
    """Context length, prompt and completion together."""
    is_down: bool = False
    """True from a failure to the next passed examination."""
    busy_until: float = -math.inf
    """Time before which it asked for no requests."""
    num_in_flight: int = 0
    num_failures: int = 0
    """Failures since its last completion."""

    def note_failure(self) -> float:
        """Count one failure; return the jittered back-off in seconds, which grows with consecutive failures."""
        self.num_failures += 1
        longest_s = min(_FIRST_BACK_OFF_S * 2 ** min(self.num_failures - 1, 10), _MAX_BACK_OFF_S)
        return random.uniform(0.5, 1.0) * longest_s


class OpenAIServers:
    """The servers of one engine; `borrow` gives the one with the fewest completions in flight."""

    def __init__(self, base_urls: Sequence[str], examine: Callable[[Server], Awaitable[None]]) -> None:
        """Take addresses such as `http://127.0.0.1:8000/v1`.

        Args:
            base_urls: addresses; duplicates count once.
            examine: fills in the server's model; raises NotAnsweredError if it does not work now, EngineError if it is
                unsuitable.
        """
        self._servers = [Server(base_url=url) for url in dict.fromkeys(url.rstrip("/") for url in base_urls)]
        self._examine = examine
        self._taken_back = asyncio.Event()
        self._probes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Examine all servers.

        Raises:
            EngineError: a server is unsuitable, or none answers. If only some do not answer, they are retried.
        """
        failures = await asyncio.gather(*(self._try(server) for server in self._servers))
        dropped = [(server, error) for server, error in zip(self._servers, failures, strict=True) if error]
        if len(dropped) == len(self._servers):
            reasons = "; ".join(str(error) for _, error in dropped)
            raise EngineError(
                f"engine: no server in `rollout.openai.base_urls` answers: {reasons}. Start one, or correct the addresses"
            )
        for server, error in dropped:
            self._drop(server, error)

    async def aclose(self) -> None:
        """Stop probing."""
        probes = list(self._probes)
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Server]:
        """Yield the server with the fewest completions in flight, once one takes work, for one try.

        A `NotAnsweredError` in the block drops the server or marks it busy, and is raised on.
        """
        server = await self._pick()
        server.num_in_flight += 1
        try:
            yield server
            server.num_failures = 0
        except BusyError as error:
            server.busy_until = time.monotonic() + error.retry_after_s + server.note_failure()
            raise
        except BrokenError as error:
            self._drop(server, error)
            raise
        finally:
            server.num_in_flight -= 1

    def suspect(self, server: Server, reason: str) -> None:
        """Drop `server` until it passes an examination, because it may hang."""
        self._drop(server, BrokenError(reason))

    async def _pick(self) -> Server:
        while True:
            now = time.monotonic()
            up = [server for server in self._servers if not server.is_down]
            usable = [server for server in up if server.busy_until <= now]
            if usable:
                return min(usable, key=lambda server: server.num_in_flight)
            patience_s = min((server.busy_until for server in up), default=now + 60.0) - now
            try:
                # Jitter: requests that wait for the same server must not all come at once.
                async with asyncio.timeout(patience_s * random.uniform(1.0, 1.1) + random.uniform(0.0, 0.05)):
                    await self._taken_back.wait()
            except TimeoutError:
                continue

    def _drop(self, server: Server, error: NotAnsweredError) -> None:
        if server.is_down:
            return  # several completions fail at once
        server.is_down = True
        pause_s = server.note_failure()
        logger.warning("engine: %s: dropped until it works again: %s", server.base_url, error)
        probe = asyncio.create_task(self._take_back(server, pause_s))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _take_back(self, server: Server, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                error = await self._try(server)
            except EngineError as refusal:
                logger.warning(
                    "engine: %s: answers again, but is unsuitable, still dropped: %s", server.base_url, refusal
                )
                error = refusal
            if error is None:
                break
            pause_s = server.note_failure()
        logger.info("engine: %s: works again", server.base_url)
        server.is_down = False
        self._taken_back.set()
        self._taken_back.clear()

    async def _try(self, server: Server) -> NotAnsweredError | None:
        """Examine `server`; return the error if it does not answer."""
        try:
            await self._examine(server)
        except NotAnsweredError as error:
            return error
        return None
