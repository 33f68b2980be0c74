"""Selection among equal judges.

A failed judge is dropped until it answers a probe; a full one is skipped for as long as it asks. Probes have a back-off, and
judges are asked for their wait only while there is something to send.
"""

import asyncio
import ipaddress
import logging
import math
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.transport import BrokenError, BusyError, NotJudgedError, RefusedError, Transport
from code_judge_server.schemas import Health, SubmissionBatch, Verdict

logger = logging.getLogger(__name__)


_FIRST_BACK_OFF_S = 0.1


_MAX_BACK_OFF_S = 5.0


_FIRST_GUESS_S = 0.05
"""Time of one program on one slot before the first measurement."""


_FAR_S = 0.1
"""Extra wait on this machine that is accepted before another machine is asked."""


_SMOOTHING = 0.3
"""Weight of the newest measurement of the pace."""


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """State of one judge; all times are of `time.monotonic`."""

    url: str
    near: bool = False
    """True if it is on this machine."""
    is_down: bool = False
    """True from a failure to the next answered probe."""
    num_in_flight: int = 0
    """This client's open submissions."""
    num_failures: int = 0
    """Failures since its last verdict."""
    busy_until: float = -math.inf
    """Time before which it asked for no requests."""
    asked_at: float = -math.inf
    """Time of the last request for its wait."""
    _reported_at: float = -math.inf
    _num_slots: int = 1
    _reported_wait_s: float = 0.0
    _num_in_flight_then: int = 0
    _num_verdicts_since: int = 0
    _interval_s: float = 0.0
    """Seconds between two verdicts for this client, while it has open submissions."""

    def wait_s(self) -> float:
        """Return the estimated wait of a new submission for a slot."""
        change = self.num_in_flight - self._num_in_flight_then
        return max(0.0, self._reported_wait_s + change * self._interval_s)

    def rank(self) -> tuple[float, float]:
        """Return the sort key of a judge; the least gets the next batch."""
        return self.wait_s() + (0.0 if self.near else _FAR_S), self.num_in_flight / self._num_slots

    def note_report(self, health: Health) -> None:
        """Update the state from a report of the judge."""
        now = time.monotonic()
        if self._interval_s == 0.0:
            self._interval_s = _FIRST_GUESS_S / health.num_slots
        elif self._num_verdicts_since and self._num_in_flight_then and self.num_in_flight:
            measured_s = (now - self._reported_at) / self._num_verdicts_since
            self._interval_s += _SMOOTHING * (measured_s - self._interval_s)
        self._num_slots = health.num_slots
        self._reported_wait_s = health.estimated_wait_s
        self._num_in_flight_then, self._num_verdicts_since, self._reported_at = self.num_in_flight, 0, now

    def note_verdict(self) -> None:
        """Count one verdict, and reset the failures."""
        self.num_in_flight -= 1
        self._num_verdicts_since += 1
        self.num_failures = 0

    def note_failure(self) -> float:
        """Count one failure; return the jittered back-off in seconds, which grows with consecutive failures."""
        self.num_failures += 1
        longest_s = min(_FIRST_BACK_OFF_S * 2 ** min(self.num_failures - 1, 10), _MAX_BACK_OFF_S)
        return random.uniform(0.5, 1.0) * longest_s


def is_on_this_machine(url: str) -> bool:
    """Return whether the address in `url` is one of this machine's; False for names other than `localhost`."""
    name = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return False
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


_REPORT_EVERY_S = 2.0
_REPORT_TIMEOUT_S = 5.0


class JudgeHosts:
    """The judges of one client; `judge` asks the one with the least estimated wait."""

    def __init__(
        self, base_urls: Sequence[str], *, client_name: str, token: str | None, on_drop: Callable[[], None]
    ) -> None:
        """Take addresses such as `http://127.0.0.1:8088`; `on_drop` is called when a judge is dropped."""
        urls = [url.rstrip("/") for url in base_urls]
        self._hosts = [Host(url=url, near=is_on_this_machine(url)) for url in dict.fromkeys(urls)]
        self._transport = Transport(client_name=client_name, token=token)
        self._on_drop = on_drop
        self._taken_back = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def urls(self) -> list[str]:
        """Addresses, in the order given, each once."""
        return [host.url for host in self._hosts]

    async def start(self) -> None:
        """Open the session on the running event loop."""
        await self._transport.start()

    async def aclose(self) -> None:
        """Stop probing, and close the session."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.aclose()

    async def pick(self) -> Host:
        """Return the judge with the least estimated wait, as soon as one takes work."""
        while True:
            now = time.monotonic()
            up = [host for host in self._hosts if not host.is_down]
            usable = [host for host in up if host.busy_until <= now]
            if usable:
                self._ask_for_reports(usable)
                return min(usable, key=Host.rank)
            patience_s = min((host.busy_until for host in up), default=now + 60.0) - now
            try:
                # Jitter: callers that wait for the same judge must not all come at once.
                async with asyncio.timeout(patience_s * random.uniform(1.0, 1.1) + random.uniform(0.0, 0.05)):
                    await self._taken_back.wait()
            except TimeoutError:
                continue

    async def judge(self, host: Host, batch: SubmissionBatch, *, deadline_s: float) -> AsyncGenerator[Verdict, None]:
        """Yield verdicts of `host` as they come.

        Raises:
            NotJudgedError: verdicts are missing; `host` is not asked again for a while.
            RefusedError: the batch, or something in it, is wrong.
            JudgeUnavailableError: the address or the token is wrong.
        """
        num_left = len(batch.submissions)
        host.num_in_flight += num_left
        try:
            async with aclosing(self._transport.judge(host.url, batch, deadline_s=deadline_s)) as verdicts:
                async for verdict in verdicts:
                    num_left -= 1
                    host.note_verdict()
                    yield verdict
        except BusyError as error:
            self.pass_over(host, error.retry_after_s)
            raise
        except BrokenError as error:
            self._drop(host, error)
            raise
        finally:
            host.num_in_flight -= num_left

    def pass_over(self, host: Host, retry_after_s: float = 0.0) -> None:
        """Skip `host` for `retry_after_s` and a jittered back-off that grows with consecutive failures."""
        host.busy_until = time.monotonic() + retry_after_s + host.note_failure()

    async def health(self, url: str, *, timeout_s: float) -> Health:
        """Return the state of the judge at `url`.

        Raises:
            NotJudgedError, RefusedError, JudgeUnavailableError: as `judge`.
        """
        return await self._transport.health(url, timeout_s=timeout_s)

    def leave_alone(self, url: str, error: Exception) -> None:
        """Drop the judge at `url` until it answers."""
        self._drop(next(host for host in self._hosts if host.url == url), error)

    def _drop(self, host: Host, error: Exception) -> None:
        pause_s = host.note_failure()
        if host.is_down:
            return  # several requests fail at once
        host.is_down = True
        self._on_drop()
        logger.warning("judge: %s: dropped until it answers again: %s", host.url, error)
        self._run(self._probe(host, pause_s))

    async def _probe(self, host: Host, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            if await self._transport.is_ready(host.url):
                break
            pause_s = host.note_failure()
        logger.info("judge: %s: answers again", host.url)
        host.is_down = False
        self._taken_back.set()
        self._taken_back.clear()

    def _ask_for_reports(self, hosts: Sequence[Host]) -> None:
        if len(self._hosts) < 2:
            return
        now = time.monotonic()
        for host in hosts:
            if now - host.asked_at > _REPORT_EVERY_S:
                # Jitter: the workers of a run must not all ask at once.
                host.asked_at = now + random.uniform(0.0, 0.5)
                self._run(self._ask(host))

    async def _ask(self, host: Host) -> None:
        try:
            host.note_report(await self._transport.health(host.url, timeout_s=_REPORT_TIMEOUT_S))
        except BrokenError as error:
            self._drop(host, error)
        except (NotJudgedError, RefusedError, JudgeUnavailableError) as error:
            logger.debug("judge: %s: does not report its wait: %s", host.url, error)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
