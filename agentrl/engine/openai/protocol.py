"""HTTP client of OpenAI's completions protocol: sends token ids, yields chunks of a completion, names failures.

The fields beyond OpenAI's own (`return_token_ids`, `stop_token_ids`, `top_k`, ...) are shared by vLLM and SGLang.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn

import aiohttp
import orjson
from pydantic import BaseModel, ValidationError

from agentrl.errors import EngineError
from agentrl.judge.http_stream import lines, retry_after_s, watched_socket
from agentrl.types import SamplingParams

_CONNECT_TIMEOUT_S = 5.0
_MODELS_TIMEOUT_S = 10.0
_IDLE_CONNECTION_S = 4.0
"""Less than uvicorn's 5 s, so that this side closes an idle connection and no request is lost."""
_READ_OF_ERROR_BYTES = 4096
_QUOTED_CHARACTERS = 300
_MAX_RETRY_AFTER_S = 60.0


class NotAnsweredError(Exception):
    """A try without a completion, which may be repeated; raised as `BrokenError` or `BusyError`."""


class BrokenError(NotAnsweredError):
    """No reply, half a reply, or an invalid one; `failed_inside`: the server reports an internal error."""

    def __init__(self, message: str, *, failed_inside: bool = False) -> None:
        super().__init__(message)
        self.failed_inside = failed_inside


class BusyError(NotAnsweredError):
    """The server is full and asks to retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server lists."""

    name: str
    max_tokens: int | None
    """Prompt and completion together; None if unknown."""


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] = []


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _PromptDetails(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens_details: _PromptDetails | None = None


class Chunk(BaseModel):
    """One event of a streamed reply; the last ones have no choice."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[_Model]


def completion_body(prompt: list[int] | str, params: SamplingParams, *, model: str) -> dict[str, Any]:
    """Return the body of a request for one streamed completion of `prompt`."""
    # Explicit, since servers fill gaps from the model's `generation_config.json`, such as Qwen3's top-k of 20.
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    # One field of vLLM and one of SGLang that keep the stop string in the text.
    stop = {"stop": list(params.stop), "include_stop_str_in_output": True, "no_stop_trim": True} if params.stop else {}
    return (
        neutral
        | stop
        | {
            "model": model,
            "prompt": prompt,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "seed": params.seed,
            "stop_token_ids": list(params.stop_token_ids),
            # Stop strings are matched in text with special tokens, which servers drop by default.
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


class OpenAIWire:
    """The HTTP session to all servers of an engine."""

    def __init__(self, *, token: str | None) -> None:
        """Take the bearer token, if the servers want one; it never appears in a message."""
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session on the running event loop."""
        # The engine limits its requests itself; aiohttp's limit of 100 connections would throttle silently.
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=_IDLE_CONNECTION_S, socket_factory=watched_socket
        )
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)

    async def aclose(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def models(self, base_url: str) -> list[ServedModel]:
        """Return the models that the server lists.

        Raises:
            NotAnsweredError: it does not answer now.
            EngineError: it is not such a server, or refuses this client.
        """
        timeout = aiohttp.ClientTimeout(total=_MODELS_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        async with self._reply("GET", f"{base_url}/models", timeout=timeout) as reply:
            content = await reply.read()
        try:
            listed = _Models.model_validate_json(content).data
        except ValidationError as error:
            raise EngineError(
                f"engine {base_url}: `/models` is not that of an OpenAI-compatible server. Check `rollout.openai.base_urls`"
            ) from error
        return [ServedModel(name=model.id, max_tokens=model.max_model_len) for model in listed]

    async def complete(self, base_url: str, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of one completion as they come, without a time limit.

        Leaving early closes the connection, so that the server aborts.

        Raises:
            NotAnsweredError: the reply ended early or never came, or the server is full.
            EngineError: the server refuses the request, or its reply does not follow the protocol.
        """
        url = f"{base_url}/completions"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
        async with self._reply("POST", url, timeout=timeout, body=orjson.dumps(body)) as reply:
            if reply.content_type != "text/event-stream":
                raise EngineError(
                    f"engine {url}: the reply is `{reply.content_type}`, not a stream. Serve the model with vLLM or SGLang"
                )
            async for line in lines(reply.content):
                field, _, data = line.rstrip(b"\r").partition(b":")
                data = data.strip()
                if field != b"data" or data == b"[DONE]":
                    continue
                yield self._chunk(data, url)

    def _chunk(self, data: bytes, url: str) -> Chunk:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise EngineError(
                f"engine {url}: the reply is not a stream of completions: {error.errors()[0]['msg']}: {self._quote(data)}"
            ) from error
        if chunk.error is not None:
            code = chunk.error.get("code") if isinstance(chunk.error, dict) else None
            self._refuse(code if isinstance(code, int) else HTTPStatus.INTERNAL_SERVER_ERROR, url, data)
        return chunk

    @asynccontextmanager
    async def _reply(
        self, method: str, url: str, *, timeout: aiohttp.ClientTimeout, body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a reply with status 200; failures, those while it is read included, are raised by name."""
        if self._session is None:
            raise RuntimeError("openai engine: not started; await `start()` on its event loop")
        headers = {"Content-Type": "application/json"}
        request = self._session.request(method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False)
        try:
            async with request as reply:
                if reply.status != HTTPStatus.OK:
                    content = await reply.content.read(_READ_OF_ERROR_BYTES)
                    self._refuse(reply.status, url, content, wait_s=retry_after_s(reply.headers))
                yield reply
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenError(f"{url}: {str(error) or type(error).__name__}") from error

    def _refuse(self, status: int, url: str, content: bytes, *, wait_s: float = 0.0) -> NoReturn:
        reason = f"{url}: HTTP {status}: {self._quote(content)}"
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and wait_s > 0):
            raise BusyError(reason, retry_after_s=min(wait_s, _MAX_RETRY_AFTER_S))
        if status >= 500:
            gateway = status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
            raise BrokenError(reason, failed_inside=not gateway)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise EngineError(f"engine {reason}. Check the token in the variable that `rollout.openai.token_env` names")
        if status == HTTPStatus.NOT_FOUND or status < 400:
            raise EngineError(
                f"engine {reason}. Check `rollout.openai.base_urls` (they usually end in `/v1`) and `rollout.openai.model`"
            )
        raise EngineError(f"engine {reason}. The server refuses the request; see its log")

    def _quote(self, content: bytes) -> str:
        text = content.decode(errors="replace")
        # Some servers repeat the refused token; it is removed before the cut, which could leave half of it.
        return (text.replace(self._token, "***") if self._token else text)[:_QUOTED_CHARACTERS]
