"""One HTTP request to the idlest of several judges, and what its failure means.

A failure is one of three: `NotJudgedError` may be repeated, `RefusedError` never helps to repeat, and
`JudgeUnavailableError` is a wrong address or token. When to repeat is the client's business.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from pydantic import ValidationError

from agentrl.errors import JudgeUnavailableError
from code_judge_server.schemas import Health, SubmissionBatch, VerdictBatch

_CONNECT_TIMEOUT_S = 5.0
_REPLY_GRACE_S = 5.0
"""How much longer than the deadline that the judge was given the client waits for its reply."""
_KEEP_ALIVE_S = 4.0
"""Less than the server's own limit, so that an idle connection is closed from this side and no request is lost in the race."""
_UNHEALTHY_S = 5.0
"""How long a host that failed is passed over while another one works."""
_REFUSED = (400, 413, 422)


class NotJudgedError(Exception):
    """A try that gave no verdict, and may be repeated after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RefusedError(Exception):
    """The judge will not take this request, however often it is sent."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Host:
    url: str
    num_in_flight: int = 0
    failed_at: float = -math.inf

    def load(self) -> tuple[bool, int]:
        """Return what hosts are ranked by: recently failed ones last, then the idlest first."""
        return time.monotonic() - self.failed_at < _UNHEALTHY_S, self.num_in_flight


class JudgeHosts:
    """Judges that are equal in kind, and the HTTP session to them."""

    def __init__(self, base_urls: Sequence[str], *, token: str | None) -> None:
        """Take addresses such as `http://127.0.0.1:8088`, and the bearer token if they ask for one."""
        self._hosts = [_Host(url=url.rstrip("/")) for url in base_urls]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    def __str__(self) -> str:
        return ", ".join(self.urls)

    @property
    def urls(self) -> list[str]:
        """Addresses, in the order given."""
        return [host.url for host in self._hosts]

    async def start(self) -> None:
        """Open the session on the running event loop."""
        # aiohttp's own limit of 100 connections would throttle silently; the client's senders are the only limit.
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=_KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def aclose(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def judge(self, batch: SubmissionBatch, *, deadline_s: float) -> VerdictBatch:
        """Return the verdicts of the idlest host.

        Raises:
            NotJudgedError: no reply, or one that asks for patience.
            RefusedError: the batch, or something in it, is wrong.
            JudgeUnavailableError: the address or the token is wrong.
        """
        host = min(self._hosts, key=_Host.load)
        host.num_in_flight += len(batch.submissions)
        try:
            content = await self._request(
                host,
                "POST",
                "/v1/submissions/batch",
                timeout_s=deadline_s + _REPLY_GRACE_S,
                body=batch.model_dump_json(),
            )
            return VerdictBatch.model_validate_json(content)
        except ValidationError as error:
            raise NotJudgedError(
                f"{host.url}: the reply is no batch of verdicts: {error.errors()[0]['msg']}"
            ) from error
        finally:
            host.num_in_flight -= len(batch.submissions)

    async def health(self, url: str, *, timeout_s: float) -> Health:
        """Return the state of the host at `url`.

        Raises:
            NotJudgedError, RefusedError, JudgeUnavailableError: as `judge`.
        """
        host = next(host for host in self._hosts if host.url == url)
        content = await self._request(host, "GET", "/v1/health", timeout_s=timeout_s)
        try:
            return Health.model_validate_json(content)
        except ValidationError as error:
            raise JudgeUnavailableError(f"judge {url}: what answers there is no code judge of agentrl") from error

    async def _request(
        self, host: _Host, method: str, path: str, *, timeout_s: float, body: str | None = None
    ) -> bytes:
        if self._session is None:
            raise RuntimeError("judge client: not started; await `start()` on the loop that uses it")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, host.url + path, data=body, headers=headers, timeout=timeout
            ) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, OSError) as error:
            host.failed_at = time.monotonic()
            raise NotJudgedError(f"{host.url}: {str(error) or type(error).__name__}") from error
        if reply.status == 200:
            return content
        reason = f"{host.url}: HTTP {reply.status}: {content[:300].decode(errors='replace')}"
        if reply.status == 429 or reply.status >= 500:
            host.failed_at = time.monotonic()
            raise NotJudgedError(reason, retry_after_s=_seconds(reply.headers.get("Retry-After")))
        if reply.status in _REFUSED:
            raise RefusedError(reason)
        raise JudgeUnavailableError(f"judge {reason}. Check its address and `token_env`")


def _seconds(retry_after: str | None) -> float:
    """Return a `Retry-After` header in seconds; its date form, which no judge sends, counts as none."""
    try:
        return max(0.0, float(retry_after or 0.0))
    except ValueError:
        return 0.0
