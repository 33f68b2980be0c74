"""An engine on external servers of OpenAI's completions protocol, with token ids in and token ids out; for evaluation.

Each completion goes to the server with the fewest in flight; one that a server did not answer goes to another with the same
seed, so that retries do not favour short completions. The protocol has no deadlines: when one passes, or a request is aborted
or cancelled, the connection is closed and the server stops sampling.

It does NOT load weights, freeze running requests, or free the servers' memory.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, NoReturn

from transformers import AutoTokenizer

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.base import EngineStats
from agentrl.engine.openai.probe import Examination
from agentrl.engine.openai.protocol import BrokenError, NotAnsweredError, OpenAIWire, completion_body
from agentrl.engine.openai.reply import Sampled, read_completion
from agentrl.engine.openai.servers import OpenAIServers, Server
from agentrl.errors import ConfigError, EngineError
from agentrl.models.tokenizer import read_model_file
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource

_MAX_FAILURES_INSIDE = 2
"""Internal errors (HTTP 500) after which the request itself is treated as the cause."""
_SILENCE_S = 30.0
"""Time without a token after which a server may hang."""

_AT_ONCE = 0.0
"""Past time of the event loop's clock, to which an abort moves a request's deadline."""


class OpenAIEngine:
    """An `Engine` that asks running servers, with at most `rollout.max_concurrent_trajectories` open requests."""

    def __init__(self, model: ModelSection, rollout: RolloutSection, *, max_tokens: int) -> None:
        """Take the config; `max_tokens` is the context that a trajectory needs, its prompt included."""
        self._model_path = model.path
        self._rollout = rollout
        self._max_tokens = max_tokens
        self._places = asyncio.Semaphore(rollout.max_concurrent_trajectories)
        self._awake = asyncio.Event()
        self._awake.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._limits: dict[str, asyncio.Timeout] = {}
        self._num_running = 0
        self._num_running_tokens = 0
        self._counts = EngineStats(
            num_running=0,
            num_waiting=0,
            kv_tokens_used=0,
            kv_tokens_capacity=rollout.max_concurrent_trajectories * max_tokens,
            policy_version=0,
            num_generated_tokens=0,
            num_prefill_tokens=0,
            num_cached_tokens=0,
        )
        self._vocabulary_size = 0
        self._wire: OpenAIWire
        self._servers: OpenAIServers

    async def start(self) -> None:
        """Examine each server with two short completions.

        Raises:
            ConfigError: the token's variable is not set, or `model.path` has no tokenizer.
            EngineError: a server is unsuitable, or none answers.
        """
        section = self._rollout.openai
        self._wire = OpenAIWire(token=_token(section.token_env))
        encode, self._vocabulary_size = await asyncio.to_thread(_load_encoder, self._model_path)
        examination = Examination(
            wire=self._wire,
            rollout=self._rollout,
            max_tokens=self._max_tokens,
            encode=encode,
            vocabulary_size=self._vocabulary_size,
        )
        self._servers = OpenAIServers(section.base_urls, examination)
        await self._wire.start()
        try:
            await self._servers.start()
        except BaseException:
            await self.aclose()
            raise

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion; see `Engine`. Requests wait while the engine is paused.

        Requests that no server answers are retried, with jittered back-off, until the deadline.

        Raises:
            EngineError: a server refuses the request, failed internally on it twice, or its reply lacks a token id or a finite
                log-probability; or the deadline passed because servers failed.
        """
        sampled, where = Sampled(), f"engine: request `{request_id}`"
        limit = self._limits[request_id] = asyncio.timeout(deadline.remaining_s())
        try:
            async with limit, self._place(len(token_ids)):
                await self._sample(token_ids, params, sampled, request_id)
        except TimeoutError as error:
            # The tokens so far are the completion, unless failures of servers used up the time.
            if sampled.failure and sampled.finish_reason is None and limit.when() != _AT_ONCE:
                raise EngineError(f"{where} was not answered by its deadline: {sampled.failure}") from error
        finally:
            self._limits.pop(request_id, None)
            self._count(len(token_ids), sampled)
        return sampled.completion(max_tokens=params.max_tokens, vocabulary_size=self._vocabulary_size, where=where)

    async def abort(self, request_id: str) -> None:
        """End a request with its tokens so far; unknown ids are ignored."""
        limit = self._limits.get(request_id)
        if limit is not None and not limit.expired():
            limit.reschedule(_AT_ONCE)

    async def pause(self, mode: Literal["keep", "wait", "abort"]) -> None:
        """Send nothing more; running requests are awaited (`wait`) or ended (`abort`).

        Raises:
            EngineError: `keep`: external servers cannot be frozen.
        """
        if mode == "keep":
            _refuse("freeze running requests (`pause` with `keep`)")
        self._awake.clear()
        if mode == "abort":
            for request_id in list(self._limits):
                await self.abort(request_id)
        await self._idle.wait()

    async def resume(self) -> None:
        """Undo `pause`."""
        self._awake.set()

    async def sleep(self, level: int) -> None:
        """Refuse: the memory is the servers' own (EngineError)."""
        _refuse("be put to sleep")

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Refuse: see `sleep` (EngineError)."""
        _refuse("be woken")

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Refuse: the weights are those that the servers were started with (EngineError)."""
        _refuse("load weights")

    async def stats(self) -> EngineStats:
        """Return the load of this engine's own requests only."""
        return replace(
            self._counts,
            num_running=self._num_running,
            num_waiting=len(self._limits) - self._num_running,
            kv_tokens_used=self._num_running_tokens,
        )

    async def aclose(self) -> None:
        """End all requests, and close the connections."""
        for request_id in list(self._limits):
            await self.abort(request_id)
        await self._servers.aclose()
        await self._wire.aclose()

    async def _sample(self, prompt: list[int], params: SamplingParams, sampled: Sampled, request_id: str) -> None:
        """Retry until `sampled` holds a completion."""
        num_failures_inside = 0
        while True:
            try:
                async with self._servers.borrow() as server:
                    await self._try(server, prompt, params, sampled, request_id)
                return
            except NotAnsweredError as error:
                sampled.failure = str(error)
                num_failures_inside += isinstance(error, BrokenError) and error.failed_inside
                if num_failures_inside >= _MAX_FAILURES_INSIDE:
                    raise EngineError(
                        f"engine: request `{request_id}` failed {num_failures_inside} times: {error}"
                    ) from error

    async def _try(
        self, server: Server, prompt: list[int], params: SamplingParams, sampled: Sampled, request_id: str
    ) -> None:
        where = f"engine {server.base_url}: request `{request_id}`"
        if server.max_tokens is not None:
            room = server.max_tokens - len(prompt)
            if room < 1:
                raise EngineError(
                    f"{where}: a prompt of {len(prompt)} tokens leaves no room in a context of {server.max_tokens}. Serve the "
                    "model with a longer context, or lower `rollout.max_response_tokens`"
                )
            params = replace(params, max_tokens=min(params.max_tokens, room))
        sampled.forget()
        started_at = time.monotonic()
        chunks = self._wire.complete(server.base_url, completion_body(prompt, params, model=server.model))
        try:
            await read_completion(chunks, sampled, where=where)
        except asyncio.CancelledError:
            silent_s = time.monotonic() - started_at
            if not sampled.token_ids and silent_s >= _SILENCE_S:
                sampled.failure = f"{where}: not a token in {silent_s:.0f} s"
                self._servers.suspect(server, sampled.failure)
            raise

    @asynccontextmanager
    async def _place(self, num_prompt_tokens: int) -> AsyncIterator[None]:
        """Hold one of the places; wait for a free one, and for the end of a pause."""
        async with self._places:
            await self._awake.wait()
            self._idle.clear()
            self._num_running += 1
            self._num_running_tokens += num_prompt_tokens
            try:
                yield
            finally:
                self._num_running -= 1
                self._num_running_tokens -= num_prompt_tokens
                if self._num_running == 0:
                    self._idle.set()

    def _count(self, num_prompt_tokens: int, sampled: Sampled) -> None:
        if not sampled.token_ids:
            return
        counts = self._counts
        self._counts = replace(
            counts,
            num_generated_tokens=counts.num_generated_tokens + len(sampled.token_ids),
            num_prefill_tokens=counts.num_prefill_tokens + num_prompt_tokens - sampled.num_cached_tokens,
            num_cached_tokens=counts.num_cached_tokens + sampled.num_cached_tokens,
        )


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(
            f"rollout.openai.token_env: the variable `{variable}` is not set in this process. Export the servers' token under "
            "that name"
        )
    return token


def _load_encoder(model_path: str) -> tuple[Callable[[str], list[int]], int]:
    """Return the function that encodes a text, and the model's number of token ids, unused rows included."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: no tokenizer in `{model_path}`: {error}") from error
    settings = read_model_file(model_path, "config.json")
    rows = (settings.get("text_config") or settings).get("vocab_size") or 0
    return lambda text: tokenizer.encode(text, add_special_tokens=False), max(len(tokenizer), rows)


def _refuse(what: str) -> NoReturn:
    raise EngineError(
        f"engine `openai`: the external servers in `rollout.openai.base_urls` cannot {what}. Use another `rollout.engine` for "
        "that"
    )
