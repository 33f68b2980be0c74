"""The judges of one client: requests to them, and their load, which is the estimated wait of a new submission.

Judges are asked for their wait only while there is something to send.
"""

import logging
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from agentrl.errors import JudgeUnavailableError
from agentrl.servers.pool import Host, HostPool
from agentrl.servers.session import BrokenError, NotAnsweredError, RefusedError, ServerSession, lines
from code_judge_server.schemas import Health, SubmissionBatch, Verdict

logger = logging.getLogger(__name__)

_PROGRAM_S = 0.05
"""Assumed time of one program on one slot, for submissions since the last report."""
_REPORT_EVERY_S = 2.0
_REPORT_TIMEOUT_S = 5.0
_READY_TIMEOUT_S = 5.0
_REPLY_GRACE_S = 5.0
"""Time that the client waits for a reply beyond the judge's deadline."""
_BAD_BATCH = (400, 413, 422)


@dataclass(slots=True, kw_only=True, eq=False)
class JudgeHost(Host):
    """State of one judge; `num_in_flight` counts submissions."""

    asked_at: float = -math.inf
    """Time of the last request for its wait."""
    _num_slots: int = 1
    _reported_wait_s: float = 0.0
    _num_in_flight_then: int = 0
    _interval_s: float = 0.0
    """Seconds by which a submission lengthens the wait; 0 before the first report."""

    def load(self) -> tuple[float, float]:
        """Return the estimated wait of a new submission for a slot, and the submissions per slot."""
        change = self.num_in_flight - self._num_in_flight_then
        wait_s = max(0.0, self._reported_wait_s + change * self._interval_s)
        return wait_s, self.num_in_flight / self._num_slots

    def note_report(self, health: Health) -> None:
        """Update the state from a report of the judge."""
        self._num_slots, self._interval_s = health.num_slots, _PROGRAM_S / health.num_slots
        self._reported_wait_s, self._num_in_flight_then = health.estimated_wait_s, self.num_in_flight


class JudgeHosts(HostPool[JudgeHost]):
    """The judges of one client."""

    def __init__(self, base_urls: Sequence[str], *, client_name: str, token: str | None) -> None:
        """Take addresses such as `http://127.0.0.1:8088`, and the name by which judges share fairly and recognise ids."""
        super().__init__(
            [JudgeHost(url=url.rstrip("/")) for url in base_urls],
            ServerSession(token=token, headers={"Judge-Client": client_name}),
            name="judge",
        )

    async def pick(self) -> JudgeHost:
        """Return the judge with the least estimated wait, as soon as one takes work."""
        host = await super().pick()
        if len(self.hosts) > 1:
            self._ask_for_reports(time.monotonic())
        return host

    async def judge(
        self, host: JudgeHost, batch: SubmissionBatch, *, deadline_s: float
    ) -> AsyncGenerator[Verdict, None]:
        """Yield the verdicts of `host` as they come; closing the iterator makes the judge drop the rest.

        Raises:
            NotAnsweredError: verdicts are missing; `host` is not asked again for a while.
            RefusedError: the batch, or something in it, is wrong.
            JudgeUnavailableError: the address or the token is wrong.
        """
        body, url = batch.model_dump_json(exclude_defaults=True), f"{host.url}/v1/submissions/stream"
        num_left = len(batch.submissions)
        host.num_in_flight += num_left
        try:
            with self.attempt(host):
                async with self._reply("POST", url, timeout_s=deadline_s + _REPLY_GRACE_S, body=body) as reply:
                    async for line in lines(reply.content):
                        verdict = _verdict(line, host)
                        num_left -= 1
                        host.num_in_flight -= 1
                        host.num_failures = 0
                        yield verdict
        finally:
            host.num_in_flight -= num_left

    async def probe(self, host: JudgeHost) -> None:
        """Return if the judge takes work; see `HostPool.probe`."""
        async with self._reply("GET", f"{host.url}/v1/ready", timeout_s=_READY_TIMEOUT_S):
            pass

    async def health(self, host: JudgeHost, *, timeout_s: float) -> Health:
        """Return the state of a judge.

        Raises:
            NotAnsweredError, RefusedError, JudgeUnavailableError: as `judge`.
        """
        async with self._reply("GET", f"{host.url}/v1/health", timeout_s=timeout_s) as reply:
            content = await reply.read()
        try:
            return Health.model_validate_json(content)
        except ValidationError as error:
            raise JudgeUnavailableError(f"judge {host.url}: the server there is no code judge of agentrl") from error

    def _ask_for_reports(self, now: float) -> None:
        for host in self.hosts:
            if not host.is_down and host.busy_until <= now and now - host.asked_at > _REPORT_EVERY_S:
                # Jitter: the workers of a run must not all ask at once.
                host.asked_at = now + random.uniform(0.0, 0.5)
                self.run_in_background(self._ask(host))

    async def _ask(self, host: JudgeHost) -> None:
        try:
            host.note_report(await self.health(host, timeout_s=_REPORT_TIMEOUT_S))
        except BrokenError as error:
            self.drop(host, error)
        except (NotAnsweredError, RefusedError, JudgeUnavailableError) as error:
            logger.debug("judge: %s: does not report its wait: %s", host.url, error)

    @asynccontextmanager
    async def _reply(self, method: str, url: str, **request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self.session.reply(method, url, **request) as reply:
                yield reply
        except RefusedError as error:
            if error.status in _BAD_BATCH:
                raise
            raise JudgeUnavailableError(f"judge {error}. Check its address and `token_env`") from error


def _verdict(line: bytes, host: JudgeHost) -> Verdict:
    try:
        return Verdict.model_validate_json(line)
    except ValidationError as error:
        raise BrokenError(f"{host.url}: the reply is no verdict: {error.errors()[0]['msg']}") from error
