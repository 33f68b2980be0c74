"""HTTP requests to a judge: sends submissions, yields verdicts as they come, names failures."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
from pydantic import ValidationError

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.http_stream import lines, retry_after_s, watched_socket
from code_judge_server.schemas import Health, SubmissionBatch, Verdict


class NotJudgedError(Exception):
    """A try without a verdict, which may be repeated; raised as `BrokenError` or `BusyError`."""


class BrokenError(NotJudgedError):
    """No reply, half a reply, or one of an unhealthy judge, such as a 503 while it stops."""


class BusyError(NotJudgedError):
    """The judge is full and asks to retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RefusedError(Exception):
    """The judge refuses this request; a retry is useless."""


_CONNECT_TIMEOUT_S = 5.0
_READY_TIMEOUT_S = 5.0
_REPLY_GRACE_S = 5.0
"""Time that the client waits for a reply beyond the judge's deadline."""
_IDLE_CONNECTION_S = 4.0
"""Less than the server's limit, so that this side closes an idle connection and no request is lost."""
_REFUSED = (400, 413, 422)


class Transport:
    """The HTTP session to all judges of a client."""

    def __init__(self, *, client_name: str, token: str | None) -> None:
        """Take the client's name, by which judges share fairly and recognise ids, and the bearer token if they want one."""
        self._headers = {"Judge-Client": client_name} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session on the running event loop."""
        # The client limits its requests itself; aiohttp's limit of 100 connections would throttle silently.
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=_IDLE_CONNECTION_S, socket_factory=watched_socket
        )
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def aclose(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def judge(self, url: str, batch: SubmissionBatch, *, deadline_s: float) -> AsyncGenerator[Verdict, None]:
        """Yield the verdicts of the judge at `url` as they come; closing the iterator makes the judge drop the rest.

        Raises:
            BrokenError: the reply ended early, is invalid, or never came.
            BusyError: the judge is full.
            RefusedError: the batch, or something in it, is wrong.
            JudgeUnavailableError: the address or the token is wrong.
        """
        body = batch.model_dump_json(exclude_defaults=True)
        timeout_s = deadline_s + _REPLY_GRACE_S
        async with self._reply("POST", f"{url}/v1/submissions/stream", timeout_s=timeout_s, body=body) as reply:
            try:
                async for line in lines(reply.content):
                    yield Verdict.model_validate_json(line)
            except ValidationError as error:
                raise BrokenError(f"{url}: the reply is no verdict: {error.errors()[0]['msg']}") from error

    async def health(self, url: str, *, timeout_s: float) -> Health:
        """Return the state of the judge at `url`.

        Raises:
            BrokenError, BusyError, RefusedError, JudgeUnavailableError: as `judge`.
        """
        async with self._reply("GET", f"{url}/v1/health", timeout_s=timeout_s) as reply:
            content = await reply.read()
        try:
            return Health.model_validate_json(content)
        except ValidationError as error:
            raise JudgeUnavailableError(f"judge {url}: the server there is no code judge of agentrl") from error

    async def is_ready(self, url: str) -> bool:
        """Return whether the judge at `url` takes work."""
        try:
            async with self._reply("GET", f"{url}/v1/ready", timeout_s=_READY_TIMEOUT_S):
                return True
        except (BrokenError, BusyError, RefusedError, JudgeUnavailableError):
            return False

    @asynccontextmanager
    async def _reply(
        self, method: str, url: str, *, timeout_s: float, body: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a reply with status 200; failures, those while it is read included, are raised by name."""
        if self._session is None:
            raise RuntimeError("judge client: not started; await `start()` on its event loop")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, url, data=body, headers=headers, timeout=timeout) as reply:
                if reply.status != 200:
                    await _raise_for(reply, url)
                yield reply
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenError(f"{url}: {str(error) or type(error).__name__}") from error


async def _raise_for(reply: aiohttp.ClientResponse, url: str) -> None:
    reason = f"{url}: HTTP {reply.status}: {(await reply.content.read(300)).decode(errors='replace')}"
    if reply.status == 429:
        raise BusyError(reason, retry_after_s=retry_after_s(reply.headers))
    if reply.status >= 500 or reply.status == HTTPStatus.REQUEST_TIMEOUT:  # the body did not arrive completely
        raise BrokenError(reason)
    if reply.status in _REFUSED:
        raise RefusedError(reason)
    raise JudgeUnavailableError(f"judge {reason}. Check its address and `token_env`")
