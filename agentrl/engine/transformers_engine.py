"""The embedded engine: continuous batching over a Hugging Face model, with nothing but torch and transformers.

It runs where vLLM is not installed, and is meant for CPU. Requests come and go at any time; a thread of its own runs the
model, a scheduler decides what each step computes (`batch_scheduler`), the turns of a trajectory and the samples of a prompt
share what is already computed (`prefix_rows`, `kv_cache`).

It does NOT do tensor parallelism, paged memory, sliding-window or linear attention, LoRA or structured output.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import numpy as np
import torch

from agentrl.config.schema import ModelSection, RolloutSection
from agentrl.engine.base import EngineStats
from agentrl.engine.batch_scheduler import BatchScheduler, Request
from agentrl.engine.language_model import LanguageModel
from agentrl.engine.request_check import check_request
from agentrl.errors import EngineDeadError, EngineError
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
        num_threads = rollout.num_threads_per_engine or len(os.sched_getaffinity(0))
        # One thread: what else touches the model and the scheduler runs between two steps, in the order it was asked for.
        self._thread = ThreadPoolExecutor(1, "agentrl-engine", torch.set_num_threads, (num_threads,))
        self._seeds = torch.Generator()
        self._open: dict[str, Request] = {}
        self._wanted = asyncio.Event()
        self._over: EngineError | None = None
        self._work: asyncio.Task[None] | None = None
        self._model: LanguageModel
        self._scheduler: BatchScheduler

    async def start(self) -> None:
        """Load the model on the compute thread.

        Raises:
            ConfigError: the model cannot be loaded, or not run by this engine.
        """
        await self._run(self._load)
        self._work = asyncio.create_task(self._step_while_wanted())

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion; see `Engine`.

        Equal seed, prompt and weights give equal tokens whatever else runs, as far as float noise allows. While the
        engine is paused or asleep, requests wait.

        Raises:
            EngineError: the prompt is empty, too long or not of this vocabulary, the id is in use, the logits are not
                finite, or the engine died or was closed.
        """
        vocabulary_size = self._model.config.vocab_size
        check_request(
            token_ids, params, request_id, self._open, max_tokens=self._max_tokens, vocabulary_size=vocabulary_size
        )
        if self._over is not None:
            raise self._over
        loop, max_tokens = asyncio.get_running_loop(), min(params.max_tokens, self._max_tokens - len(token_ids))
        self._open[request_id] = request = Request(
            request_id=request_id,
            prompt_ids=np.asarray(token_ids, dtype=np.int32),
            params=params,
            max_tokens=max_tokens,
            stop_token_ids=self._model.eos_token_ids.union(params.stop_token_ids),
            uniforms=self._uniforms(params.seed, max_tokens) if params.temperature else [],
            future=loop.create_future(),
        )
        timer = loop.call_later(deadline.remaining_s(), self._end, request)
        self._scheduler.waiting.append(request)
        self._wanted.set()
        try:
            return await request.future
        finally:
            timer.cancel()
            del self._open[request_id]
            self._end(request)  # it may have been cancelled

    async def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown ids are ignored."""
        if request := self._open.get(request_id):
            self._end(request)
            await asyncio.wait([request.future])

    async def pause(self, mode: Literal["keep", "wait", "abort"]) -> None:
        """Stop sampling; returns when nothing is computed any more. Requests that come meanwhile wait."""
        self._scheduler.admits, self._scheduler.steps = False, mode == "wait"
        self._wanted.set()
        running = await self._run(lambda: [request.future for request in self._scheduler.running])
        if mode == "wait" and running:
            await asyncio.wait(running)
        elif mode == "abort":
            await asyncio.gather(*map(self.abort, list(self._open)))

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._scheduler.admits = self._scheduler.steps = True
        self._wanted.set()

    async def sleep(self, level: int) -> None:
        """Free the KV cache; requests wait until `wake`. The weights stay, whatever the level: on CPU they are on the host."""
        self._scheduler.is_awake = False
        await self._run(self._scheduler.drop_cache)

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Undo `sleep`, once `kv_cache` is among the tags."""
        self._scheduler.is_awake |= "kv_cache" in tags
        self._wanted.set()

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Replace the weights between two steps. Running requests go on, computed again from their tokens.

        Raises:
            EngineError: names or shapes are not those of the model, or the publisher is gone; nothing has changed then.
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
        self._fail(EngineDeadError("engine: it was closed"))
        if self._work is not None:
            self._work.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a function on the compute thread, between two steps."""
        if self._over is not None:
            raise self._over
        call = torch.inference_mode()(function)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _step_while_wanted(self) -> None:
        """Step as long as there is work. A bug in it ends the engine, and every open request with the cause."""
        try:
            while True:
                self._wanted.clear()
                for request in await self._run(self._scheduler.tick):
                    request.hand_over()
                if not self._scheduler.is_busy:
                    await self._wanted.wait()
        except Exception as error:
            logger.exception("engine: a step failed")
            self._fail(EngineDeadError(f"engine: it died of {type(error).__name__}: {error}"))

    def _end(self, request: Request) -> None:
        request.is_wanted = False
        self._wanted.set()

    def _fail(self, error: EngineError) -> None:
        self._over = self._over or error
        for request in self._open.values():
            if not request.future.done():
                request.future.set_exception(error)

    def _load(self) -> None:
        self._model = model = LanguageModel(self._section, num_rows=self._num_rows)
        self._max_tokens = min(self._max_tokens, getattr(model.config, "max_position_embeddings", self._max_tokens))
        self._scheduler = BatchScheduler(model, num_rows=self._num_rows, max_tokens=self._max_tokens)

    def _uniforms(self, seed: int | None, count: int) -> list[float]:
        if seed is None:
            self._seeds.seed()
        else:
            self._seeds.manual_seed(seed % 2**63)  # any int is a seed, torch takes 64 bits
        return torch.rand(count, generator=self._seeds).tolist()
