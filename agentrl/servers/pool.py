"""The choice among equal servers: least load, back-off, health, and the return of servers that failed.

A failed server is dropped until it passes a probe; a full one is skipped for as long as it asks. A subclass has the protocol:
the requests, the probe, and the load of a host.
"""

import asyncio
import contextlib
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from agentrl.errors import AgentRLError
from agentrl.servers.back_off import Host
from agentrl.servers.session import BrokenError, BusyError, NotAnsweredError, RefusedError, ServerSession

logger = logging.getLogger(__name__)


HostT = TypeVar("HostT", bound=Host)


class HostPool(ABC, Generic[HostT]):
    """The servers of one client, over one HTTP session."""

    def __init__(self, hosts: Iterable[HostT], session: ServerSession, *, name: str) -> None:
        """Take the hosts, of which duplicates count once; `name` begins the log lines."""
        self.hosts = list({host.url: host for host in hosts}.values())
        self.session = session
        self.num_drops = 0
        """Times that a host was dropped."""
        self._name = name
        self._returned = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def probe(self, host: HostT) -> None:
        """Return if `host` takes work.

        Raises:
            NotAnsweredError: it does not work now.
            RefusedError, AgentRLError: it is unsuitable, such as another program at its address.
        """

    async def start(self) -> None:
        """Open the session on the running event loop."""
        await self.session.start()

    async def aclose(self) -> None:
        """Stop probing, and close the session."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.session.aclose()

    async def require_one(self, ask: Callable[[HostT], Awaitable[object]]) -> None:
        """Ask all hosts at once, and drop those that do not answer.

        Raises:
            NotAnsweredError: none answers.
            RefusedError, AgentRLError: one of them is unsuitable.
        """
        answers = await asyncio.gather(*map(ask, self.hosts), return_exceptions=True)
        failures = [
            (host, error) for host, error in zip(self.hosts, answers, strict=True) if isinstance(error, BaseException)
        ]
        for _, error in failures:
            if not isinstance(error, NotAnsweredError):
                raise error
        if len(failures) == len(self.hosts):
            raise NotAnsweredError("; ".join(str(error) for _, error in failures))
        for host, error in failures:
            self.drop(host, error)

    async def pick(self) -> HostT:
        """Return the host with the least load, as soon as one takes work."""
        while True:
            now = time.monotonic()
            up = [host for host in self.hosts if not host.is_down]
            usable = [host for host in up if host.busy_until <= now]
            if usable:
                # Shuffled: clients that know no load must not all ask the first one.
                return min(random.sample(usable, len(usable)), key=lambda host: host.load())
            patience_s = min((host.busy_until for host in up), default=now + 60.0) - now
            with contextlib.suppress(TimeoutError):
                # Jitter: callers that wait for the same server must not all come at once.
                async with asyncio.timeout(patience_s * random.uniform(1.0, 1.1) + random.uniform(0.0, 0.05)):
                    await self._returned.wait()

    @contextlib.contextmanager
    def attempt(self, host: HostT) -> Iterator[None]:
        """Skip or drop `host` after a `NotAnsweredError` of the block, which is raised on."""
        try:
            yield
        except BusyError as error:
            self.skip(host, error.retry_after_s)
            raise
        except BrokenError as error:
            self.drop(host, error)
            raise

    def skip(self, host: HostT, retry_after_s: float = 0.0) -> None:
        """Skip `host` for `retry_after_s` and a back-off."""
        host.busy_until = time.monotonic() + retry_after_s + host.note_failure()

    def drop(self, host: HostT, error: BaseException | str) -> None:
        """Drop `host` until it passes a probe."""
        if host.is_down:
            return  # several requests fail at once
        host.is_down = True
        self.num_drops += 1
        logger.warning("%s: %s: dropped until it works again: %s", self._name, host.url, error)
        self.run_in_background(self._take_back(host, host.note_failure()))

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task that ends with this pool."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _take_back(self, host: HostT, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.probe(host)
                break
            except NotAnsweredError:
                pass
            except (RefusedError, AgentRLError) as error:
                logger.warning("%s: %s: answers, but is unsuitable, still dropped: %s", self._name, host.url, error)
            pause_s = host.note_failure()
        logger.info("%s: %s: works again", self._name, host.url)
        host.is_down = False
        self._returned.set()
        self._returned.clear()
