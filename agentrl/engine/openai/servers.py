"""Servers of OpenAI's protocol: HTTP requests to them, and the probe of a server at the start and after a failure.

The probe is a short completion, because servers differ and their documentation ages. vLLM (0.10.2 and later) and SGLang
(0.5.23) give token ids on `/v1/completions`; OpenAI's own service, llama.cpp's server and others give text alone, which cannot
be turned back into the ids that were sampled.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from pydantic import ValidationError
from transformers import PreTrainedTokenizerFast

from agentrl.config.schema.run import RolloutSection
from agentrl.engine.openai.protocol import Chunk, Sampled, ServedModels, completion_body
from agentrl.errors import EngineError
from agentrl.servers.back_off import Host
from agentrl.servers.pool import HostPool
from agentrl.servers.session import BrokenError, RefusedError, ServerSession, lines
from agentrl.types import SamplingParams

_MODELS_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 60.0
"""Limit of a whole probe; a full server answers late."""
_PROBE_TEXT = "Question: what is 12 + 30? Answer:"


@dataclass(slots=True, kw_only=True, eq=False)
class Server(Host):
    """State of one server; the probe fills in its model."""

    model: str = ""
    """Name under which it serves the policy."""


class OpenAIServers(HostPool[Server]):
    """The servers of one engine."""

    def __init__(
        self,
        rollout: RolloutSection,
        tokenizer: PreTrainedTokenizerFast,
        *,
        token: str | None,
        vocabulary_size: int,
        max_tokens: int,
    ) -> None:
        """Take the policy's tokenizer, its number of token ids, and the context that a trajectory needs."""
        urls = [url.rstrip("/") for url in rollout.openai.base_urls]
        session = ServerSession(token=token, busy_status=HTTPStatus.SERVICE_UNAVAILABLE)
        super().__init__([Server(url=url) for url in urls], session, name="engine")
        self._rollout = rollout
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._max_tokens = max_tokens

    async def complete(self, server: Server, prompt: list[int] | str, params: SamplingParams, sampled: Sampled) -> None:
        """Add the parts of one completion to `sampled` as they come, without a time limit.

        If this ends early, the connection is closed, so that the server aborts.

        Raises:
            NotAnsweredError: the reply ended early or never came, or the server is full.
            EngineError: the server refuses the request, or its reply does not follow the protocol.
        """
        url = f"{server.url}/completions"
        body = orjson.dumps(completion_body(prompt, params, model=server.model))
        try:
            async with self._reply("POST", url, timeout_s=None, body=body) as reply:
                if reply.content_type != "text/event-stream":
                    raise EngineError(
                        f"engine {url}: the reply is `{reply.content_type}`, not a stream. Serve the model with vLLM or SGLang"
                    )
                async for line in lines(reply.content):
                    field, _, data = line.partition(b":")
                    if field == b"data" and (data := data.strip()) != b"[DONE]":
                        sampled.add(self._chunk(data, url))
        except BrokenError:
            if sampled.finish_reason is None:
                raise  # else only the end of the stream is missing
        if sampled.finish_reason is None:
            raise BrokenError(f"{sampled.where}: the reply ended early, after {len(sampled.token_ids)} tokens")

    async def probe(self, host: Server) -> None:
        """Examine a server and fill in its model.

        Raises:
            NotAnsweredError: it does not work now.
            EngineError: it is unsuitable.
        """
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                host.model = await self._served_model(host)
                await self._examine(host)
        except TimeoutError as error:
            raise BrokenError(
                f"{host.url}: no answer to a completion of one token in {_PROBE_TIMEOUT_S:g} s"
            ) from error

    async def _served_model(self, server: Server) -> str:
        async with self._reply("GET", f"{server.url}/models", timeout_s=_MODELS_TIMEOUT_S) as reply:
            content = await reply.read()
        try:
            models = ServedModels.model_validate_json(content).data
        except ValidationError as error:
            raise EngineError(
                f"engine {server.url}: `/models` is not that of an OpenAI-compatible server. Check "
                "`rollout.openai.base_urls`"
            ) from error
        wanted = self._rollout.openai.model
        named = [model for model in models if wanted in (None, model.id)]
        if len(named) != 1:
            listed = ", ".join(f"`{model.id}`" for model in models) or "none"
            rule = "it must list one" if wanted is None else f"`rollout.openai.model` is `{wanted}`"
            raise EngineError(
                f"engine {server.url}: {rule}, and it lists {listed}. Set `rollout.openai.model` to one of them"
            )
        [served] = named
        if served.max_model_len is not None and served.max_model_len < self._max_tokens:
            raise EngineError(
                f"engine {server.url}: its context is {served.max_model_len} tokens, and trajectories need {self._max_tokens}. "
                "Serve the model with a longer one, or lower `data.max_prompt_tokens` or `rollout.max_response_tokens`"
            )
        return served.id

    async def _examine(self, server: Server) -> None:
        prompt = self._tokenizer.encode(_PROBE_TEXT, add_special_tokens=False)
        sampled = Sampled(where=f"engine {server.url}")
        await self.complete(server, _PROBE_TEXT, SamplingParams(max_tokens=1, temperature=0.0), sampled)
        if not sampled.completion(max_tokens=1, vocabulary_size=self._vocabulary_size).token_ids:
            raise EngineError(f"{sampled.where}: a completion has no token")
        theirs = sampled.prompt_token_ids
        # The server may add a special token (BOS) to text; prompts of token ids contain it already.
        if theirs is not None and theirs[-len(prompt) :] != prompt:
            raise EngineError(
                f"{sampled.where}: `{server.model}` turns a text into other token ids than the tokenizer in `model.path`: "
                f"{theirs} and {prompt}. Set `model.path` to the folder or hub name of the served model"
            )

    def _chunk(self, data: bytes, url: str) -> Chunk:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise EngineError(
                f"engine {url}: the reply is not a stream of completions: {error.errors()[0]['msg']}: "
                f"{self.session.quote(data)}"
            ) from error
        if chunk.error is not None:
            code = chunk.error.get("code") if isinstance(chunk.error, dict) else None
            raise self.session.failure(url, code if isinstance(code, int) else 500, data)
        return chunk

    @asynccontextmanager
    async def _reply(self, method: str, url: str, **request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self.session.reply(method, url, **request) as reply:
                yield reply
        except RefusedError as error:
            advice = "The server refuses the request; see its log"
            if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                advice = "Check the token in the variable that `rollout.openai.token_env` names"
            elif error.status == HTTPStatus.NOT_FOUND or error.status < 400:
                advice = "Check `rollout.openai.base_urls` (they usually end in `/v1`) and `rollout.openai.model`"
            raise EngineError(f"engine {error}. {advice}") from error
