"""The judges of one client: requests to them, and their load, which is this client's submissions per slot."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from pydantic import ValidationError

from agentrl.errors import JudgeUnavailableError
from agentrl.servers.back_off import Host
from agentrl.servers.pool import HostPool
from agentrl.servers.session import BrokenError, RefusedError, ServerSession, lines
from code_judge_server.schemas import Health, SubmissionBatch, Verdict
from code_judge_server.sessions.schemas import CellRequest, CellResult, SessionState

_READY_TIMEOUT_S = 5.0
_REPLY_GRACE_S = 5.0
"""Time that the client waits for a reply beyond the judge's deadline."""
_BAD_REQUEST = (400, 413, 422)


@dataclass(slots=True, kw_only=True, eq=False)
class JudgeHost(Host):
    """State of one judge; `num_in_flight` counts submissions."""

    num_slots: int = 1
    """Programs that it runs at once; known after `JudgeHosts.health`."""

    def load(self) -> float:
        """Return the submissions per slot."""
        return self.num_in_flight / self.num_slots


class JudgeHosts(HostPool[JudgeHost]):
    """The judges of one client."""

    def __init__(self, base_urls: Sequence[str], *, client_name: str, token: str | None) -> None:
        """Take addresses such as `http://127.0.0.1:8088`, and the name by which judges share fairly and recognise ids."""
        super().__init__(
            [JudgeHost(url=url.rstrip("/")) for url in base_urls],
            ServerSession(token=token, headers={"Judge-Client": client_name}),
            name="judge",
        )

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
        await self.health(host, timeout_s=_READY_TIMEOUT_S)

    async def health(self, host: JudgeHost, *, timeout_s: float) -> Health:
        """Return the state of a judge, and note its number of slots.

        Raises:
            NotAnsweredError, RefusedError, JudgeUnavailableError: as `judge`.
        """
        async with self._reply("GET", f"{host.url}/v1/health", timeout_s=timeout_s) as reply:
            content = await reply.read()
        try:
            health = Health.model_validate_json(content)
        except ValidationError as error:
            raise JudgeUnavailableError(f"judge {host.url}: the server there is no code judge of agentrl") from error
        host.num_slots = health.num_slots
        return health

    async def open_session(self, host: JudgeHost, *, timeout_s: float) -> SessionState:
        """Open a Python session.

        Raises:
            NotAnsweredError, RefusedError, JudgeUnavailableError: as `judge`; a `BusyError` if there is no room.
        """
        async with self._reply("POST", f"{host.url}/v1/sessions", timeout_s=timeout_s, body="{}") as reply:
            return SessionState.model_validate_json(await reply.read())

    async def session_state(self, host: JudgeHost, session_id: str, *, timeout_s: float) -> SessionState:
        """Return the state of a session; a `RefusedError` means that it is gone."""
        async with self._reply("GET", f"{host.url}/v1/sessions/{session_id}", timeout_s=timeout_s) as reply:
            return SessionState.model_validate_json(await reply.read())

    async def run_cell(self, host: JudgeHost, session_id: str, request: CellRequest) -> CellResult:
        """Run a cell of a session; a `RefusedError` means that the session is gone."""
        timeout_s = None if request.deadline_s is None else request.deadline_s + _REPLY_GRACE_S
        body, url = request.model_dump_json(exclude_defaults=True), f"{host.url}/v1/sessions/{session_id}/cells"
        async with self._reply("POST", url, timeout_s=timeout_s, body=body) as reply:
            return CellResult.model_validate_json(await reply.read())

    async def close_session(self, host: JudgeHost, session_id: str, *, timeout_s: float) -> None:
        """Close a session."""
        async with self._reply("DELETE", f"{host.url}/v1/sessions/{session_id}", timeout_s=timeout_s):
            pass

    @asynccontextmanager
    async def _reply(self, method: str, url: str, **request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self.session.reply(method, url, **request) as reply:
                yield reply
        except RefusedError as error:
            session_is_gone = error.status == HTTPStatus.NOT_FOUND and "/v1/sessions/" in url
            if error.status in _BAD_REQUEST or session_is_gone:
                raise
            raise JudgeUnavailableError(f"judge {error}. Check its address and `token_env`") from error


def _verdict(line: bytes, host: JudgeHost) -> Verdict:
    try:
        return Verdict.model_validate_json(line)
    except ValidationError as error:
        raise BrokenError(f"{host.url}: the reply is no verdict: {error.errors()[0]['msg']}") from error
