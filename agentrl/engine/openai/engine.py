"""An engine on external servers of OpenAI's completions protocol, with token ids in and token ids out; for evaluation.

Each completion goes to the server with the fewest in flight; one that a server did not answer goes to another with the same
seed, so that retries do not favour short completions. The protocol has no deadlines: when one passes, or a request is aborted
or cancelled, the connection is closed and the server stops sampling.

It does NOT load weights, or free the servers' memory.
"""

import asyncio
import time
from dataclasses import dataclass

from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.engine.base import EngineStats
from agentrl.engine.openai.protocol import Sampled
from agentrl.engine.openai.servers import OpenAIServers, Server
from agentrl.errors import EngineError
from agentrl.models.tokenizer import load_tokenizer, read_model_file
from agentrl.servers.session import BrokenError, NotAnsweredError, bearer_token
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource

_MAX_INTERNAL_ERRORS = 2
"""Internal errors (HTTP 500) after which the request itself is treated as the cause."""
_SILENCE_S = 30.0
"""Time without a token after which a server may hang."""
_OF_OTHERS = "engine `openai`: the external servers in `rollout.openai.base_urls` load no weights, and cannot sleep"
_AT_ONCE = 0.0
"""Past time of the event loop's clock, to which an abort moves a request's deadline."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """An open request; every try has a new `sampled`."""

    id: str
    prompt: list[int]
    params: SamplingParams
    limit: asyncio.Timeout
    sampled: Sampled
    is_running: bool = False
    failure: str = ""
    """Reason of the last failure, or of a suspected one."""


class OpenAIEngine:
    """An `Engine` that asks running servers, with at most `rollout.max_concurrent_trajectories` open requests."""

    def __init__(self, model: ModelSection, rollout: RolloutSection, *, max_tokens: int) -> None:
        """Take the config; `max_tokens` is the context that a trajectory needs, its prompt included."""
        self._model_path = model.path
        self._rollout = rollout
        self._max_tokens = max_tokens
        self._places = asyncio.Semaphore(rollout.max_concurrent_trajectories)
        self._open: dict[str, _Request] = {}
        self._num_generated = self._num_prefilled = self._num_cached = 0
        self._vocabulary_size = 0
        self._servers: OpenAIServers

    async def start(self) -> None:
        """Probe each server with a short completion.

        Raises:
            ConfigError: the token's variable is not set, or `model.path` has no tokenizer.
            EngineError: a server is unsuitable, or none answers.
        """
        token = bearer_token(self._rollout.openai.token_env, key="rollout.openai.token_env")
        tokenizer = await asyncio.to_thread(load_tokenizer, self._model_path)
        settings = read_model_file(self._model_path, "config.json")
        num_rows = (settings.get("text_config") or settings).get("vocab_size") or 0
        self._vocabulary_size = max(len(tokenizer), num_rows)
        self._servers = OpenAIServers(
            self._rollout,
            tokenizer,
            token=token,
            vocabulary_size=self._vocabulary_size,
            max_tokens=self._max_tokens,
        )
        await self._servers.start()
        try:
            await self._servers.require_one(self._servers.probe)
        except BaseException as error:
            await self.aclose()
            if not isinstance(error, NotAnsweredError):
                raise
            raise EngineError(
                f"engine: no server in `rollout.openai.base_urls` answers: {error}. Start one, or correct the addresses"
            ) from error

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion; see `Engine`.

        Requests that no server answers are retried, with jittered back-off, until the deadline.

        Raises:
            EngineError: a server refuses the request, failed internally on it twice, or its reply lacks a token id or a finite
                log-probability; or the deadline passed because servers failed.
        """
        where, limit = f"engine: request `{request_id}`", asyncio.timeout(deadline.remaining_s())
        sampled = Sampled(where=where)
        request = _Request(id=request_id, prompt=token_ids, params=params, limit=limit, sampled=sampled)
        self._open[request_id] = request
        try:
            async with limit, self._places:
                request.is_running = True
                await self._sample(request)
        except TimeoutError as error:
            # The tokens so far are the completion, unless failures of servers used up the time.
            if request.failure and request.sampled.finish_reason is None and limit.when() != _AT_ONCE:
                raise EngineError(f"{where} was not answered by its deadline: {request.failure}") from error
        finally:
            self._open.pop(request_id, None)
            self._count(request)
        return request.sampled.completion(max_tokens=params.max_tokens, vocabulary_size=self._vocabulary_size)

    async def abort(self, request_id: str) -> None:
        """End a request with its tokens so far; unknown ids are ignored."""
        request = self._open.get(request_id)
        if request is not None and not request.limit.expired():
            request.limit.reschedule(_AT_ONCE)

    async def sleep(self) -> None:
        """Refuse (EngineError)."""
        raise EngineError(_OF_OTHERS)

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Refuse (EngineError)."""
        raise EngineError(_OF_OTHERS)

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Refuse (EngineError)."""
        raise EngineError(_OF_OTHERS)

    async def stats(self) -> EngineStats:
        """Return the load of this engine's own requests only."""
        running = [request for request in self._open.values() if request.is_running]
        return EngineStats(
            num_running=len(running),
            num_waiting=len(self._open) - len(running),
            kv_tokens_used=sum(len(request.prompt) for request in running),
            kv_tokens_capacity=self._rollout.max_concurrent_trajectories * self._max_tokens,
            policy_version=0,
            num_generated_tokens=self._num_generated,
            num_prefill_tokens=self._num_prefilled,
            num_cached_tokens=self._num_cached,
        )

    async def aclose(self) -> None:
        """End all requests, and close the connections."""
        for request_id in list(self._open):
            await self.abort(request_id)
        await self._servers.aclose()

    async def _sample(self, request: _Request) -> None:
        """Retry until `request.sampled` is complete."""
        num_internal_errors = 0
        while True:
            server = await self._servers.pick()
            server.num_in_flight += 1
            try:
                with self._servers.attempt(server):
                    await self._try(request, server)
                server.num_failures = 0
                return
            except NotAnsweredError as error:
                request.failure = str(error)
                num_internal_errors += isinstance(error, BrokenError) and error.status == 500
                if num_internal_errors >= _MAX_INTERNAL_ERRORS:
                    raise EngineError(
                        f"engine: request `{request.id}` failed {num_internal_errors} times: {error}"
                    ) from error
            finally:
                server.num_in_flight -= 1

    async def _try(self, request: _Request, server: Server) -> None:
        where = f"engine {server.url}: request `{request.id}`"
        request.sampled = sampled = Sampled(where=where)
        started_at = time.monotonic()
        try:
            await self._servers.complete(server, request.prompt, request.params, sampled)
        except asyncio.CancelledError:
            silent_s = time.monotonic() - started_at
            if not sampled.token_ids and silent_s >= _SILENCE_S:
                request.failure = f"{where}: not a token in {silent_s:.0f} s"
                self._servers.drop(server, request.failure)
            raise

    def _count(self, request: _Request) -> None:
        sampled = request.sampled
        if sampled.token_ids:
            self._num_generated += len(sampled.token_ids)
            self._num_prefilled += len(request.prompt) - sampled.num_cached_tokens
            self._num_cached += sampled.num_cached_tokens
