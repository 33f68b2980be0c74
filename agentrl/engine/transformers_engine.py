"""The embedded engine: continuous batching over a Hugging Face model, with nothing but torch and transformers.

It runs where vLLM is not installed, on CPU too. Requests come and go at any time; a thread of its own runs the model
(`compute_thread`), a scheduler decides what each step computes (`batch_scheduler`), the turns of a trajectory and the
samples of a prompt share what is already computed (`prefix_rows`, `kv_cache`).

It does NOT do tensor parallelism, paged memory, sliding-window or linear attention, LoRA or structured output.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeVar

import numpy as np
import torch

from agentrl.config.schema import ModelSection, RolloutSection
from agentrl.engine.base import EngineStats
from agentrl.engine.batch_scheduler import BatchScheduler
from agentrl.engine.compute_thread import ComputeThread
from agentrl.engine.language_model import LanguageModel
from agentrl.engine.request import Request
from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource

logger = logging.getLogger(__name__)
T = TypeVar("T")


class TransformersEngine:
    """An `Engine` in this process.

    The cache has `rollout.max_concurrent_trajectories` rows of `max_prompt_tokens + max_response_tokens` tokens.
    """

    def __init__(self, model: ModelSection, rollout: RolloutSection) -> None:
        self._section = model
        self._num_rows = rollout.max_concurrent_trajectories
        self._max_tokens = rollout.max_prompt_tokens + rollout.max_response_tokens
        self._num_threads = rollout.num_threads_per_engine or len(os.sched_getaffinity(0))
        self._thread = ComputeThread()
        self._seeds = torch.Generator()
        self._model: LanguageModel
        self._scheduler: BatchScheduler

    async def start(self) -> None:
        """Load the model on the compute thread.

        Raises:
            ConfigError: the model cannot be loaded, or not run by this engine.
        """
        self._thread.start()
        await self._run(self._load)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion; see `Engine`.

        Equal seed, prompt and weights give equal tokens whatever else runs, as far as float noise allows. While the
        engine is paused or asleep, requests wait.

        Raises:
            EngineError: the prompt is empty, too long or not of this vocabulary, the logits are not finite, or the
                engine died.
        """
        prompt_ids = self._checked(token_ids, params, request_id)
        max_tokens = min(params.max_tokens, self._max_tokens - len(prompt_ids))
        uniforms = self._uniforms(params.seed, max_tokens) if params.temperature else []
        expires_at = time.monotonic() + deadline.remaining_s()

        def submit(future: Future[Completion]) -> None:
            self._scheduler.submit(
                Request(
                    request_id=request_id,
                    prompt_ids=prompt_ids,
                    params=params,
                    max_tokens=max_tokens,
                    stop_token_ids=self._model.eos_token_ids.union(params.stop_token_ids),
                    expires_at=expires_at,
                    uniforms=uniforms,
                    future=future,
                )
            )

        return await asyncio.wrap_future(self._thread.submit(submit))

    async def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown ids are ignored."""
        await self._run(lambda: self._scheduler.abort(request_id))

    async def pause(self, mode: Literal["keep", "wait", "abort"]) -> None:
        """Stop sampling; returns when nothing is computed any more. Requests that come meanwhile wait."""
        if mode == "wait":
            await asyncio.wrap_future(self._thread.submit(self._scheduler.drain))
            return
        await self._run(self._scheduler.freeze)
        if mode == "abort":
            await self._run(lambda: self._scheduler.abort(None))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._run(self._scheduler.resume)

    async def sleep(self, level: int) -> None:
        """Free the KV cache, and move the weights to the host (1) or drop them (2); requests wait until `wake`.

        Raises:
            EngineError: a request is running.
        """

        def sleep() -> None:
            self._scheduler.cache_dropped()
            self._model.sleep(level)

        await self._run(sleep)

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Undo `sleep`; after level 2 requests wait for `load_weights` as well."""
        await self._run(lambda: self._model.wake(tags))

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Replace the weights between two steps. Running requests go on, with the keys and values they have.

        Raises:
            EngineError: names or shapes are not those of the model; nothing has changed then.
        """

        def load() -> None:
            self._model.load_weights(source)
            self._scheduler.weights_changed(version)

        await self._run(load)

    async def stats(self) -> EngineStats:
        """Return the load between two steps."""
        return await self._run(self._scheduler.stats)

    async def aclose(self) -> None:
        """Stop; open requests get an `EngineError`."""
        await asyncio.to_thread(self._thread.close)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.run(function))

    def _load(self) -> None:
        torch.set_num_threads(self._num_threads)
        model = LanguageModel(self._section, num_rows=self._num_rows, max_tokens=self._max_tokens)
        limit = getattr(model.config, "max_position_embeddings", self._max_tokens)
        if limit < self._max_tokens:
            logger.warning(
                "engine: the model has %d positions: the context is cut from %d tokens to that", limit, self._max_tokens
            )
            self._max_tokens = model.cache.max_tokens = limit
        self._model = model
        self._scheduler = BatchScheduler(model, num_rows=self._num_rows, max_tokens=self._max_tokens)
        self._thread.work = self._scheduler

    def _checked(self, token_ids: list[int], params: SamplingParams, request_id: str) -> np.ndarray:
        where, vocabulary = f"engine: request `{request_id}`", self._model.config.vocab_size
        if not 0 < len(token_ids) < self._max_tokens:
            raise EngineError(
                f"{where}: a prompt of {len(token_ids)} tokens does not fit a context of {self._max_tokens}, of which"
                " one is for the answer: raise `rollout.max_prompt_tokens` or `rollout.max_response_tokens`"
            )
        if min(token_ids) < 0 or max(token_ids) >= vocabulary:
            raise EngineError(f"{where}: token ids outside the vocabulary of {vocabulary}: is it another tokenizer's?")
        if params.max_tokens < 1:
            raise EngineError(f"{where}: `max_tokens` is {params.max_tokens}: there is nothing to sample")
        return np.asarray(token_ids, dtype=np.int32)

    def _uniforms(self, seed: int | None, count: int) -> list[float]:
        if seed is None:
            self._seeds.seed()
        else:
            self._seeds.manual_seed(seed % 2**63)  # any int is a seed, torch takes 64 bits
        return torch.rand(count, generator=self._seeds).tolist()
