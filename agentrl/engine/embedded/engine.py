"""The embedded engine: continuous batching over a Hugging Face model, with torch and transformers only.

It needs no vLLM, and is meant for CPU. A separate thread runs the model, a scheduler decides what each step computes
(`scheduler`), and the turns of a trajectory and the samples of a prompt share computed prefixes (`prefix_rows`,
`kv_cache`).

It does NOT do tensor parallelism, paged memory, linear attention, LoRA or structured output.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from agentrl.engine.base import EngineStats, check_request
from agentrl.engine.embedded.model import LanguageModel
from agentrl.engine.embedded.scheduler import BatchScheduler, Request
from agentrl.engine.stop_strings import StopStrings
from agentrl.errors import EngineDeadError, EngineError
from agentrl.models.tokenizer import text_decoder
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource

if TYPE_CHECKING:  # configs need OmegaConf, which a plain image of PyTorch lacks
    from agentrl.config.schema.run import ModelSection, RolloutSection

logger = logging.getLogger(__name__)
T = TypeVar("T")


class TransformersEngine:
    """An `Engine` in this process; its cache has `rollout.max_concurrent_trajectories` rows of `max_tokens` tokens."""

    def __init__(
        self, model: "ModelSection", rollout: "RolloutSection", *, max_tokens: int, num_threads: int = 1
    ) -> None:
        self._section, self._num_rows, self._max_tokens = model, rollout.max_concurrent_trajectories, max_tokens
        # One thread: every other access to model and scheduler runs between two steps, in the order of the calls.
        self._thread = ThreadPoolExecutor(1, "agentrl-engine", torch.set_num_threads, (num_threads,))
        self._is_stepping = False
        self._open: dict[str, Request] = {}
        self._over: EngineError | None = None
        self._scheduler: BatchScheduler

    async def start(self) -> None:
        """Load the model on the compute thread.

        Raises:
            ConfigError: this engine cannot load or run the model.
        """
        await self._call(self._load)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """Sample one completion; see `Engine`.

        Equal seed, prompt and weights give equal tokens in any batch, as far as float noise allows. While the engine sleeps,
        requests wait.

        Raises:
            EngineError: the prompt is empty, too long or outside the vocabulary, the id is in use, the logits are not finite,
                or the engine died or was closed.
        """
        scheduler, model = self._scheduler, self._scheduler.model
        limits = {"max_tokens": model.max_tokens, "vocabulary_size": model.config.vocab_size}
        check_request(token_ids, params, request_id, self._open, **limits)
        max_tokens = min(params.max_tokens, model.max_tokens - len(token_ids))
        # Any int is a seed, and torch takes 64 bits.
        seed = secrets.randbits(63) if params.seed is None else params.seed % 2**63
        uniforms = torch.rand(max_tokens, generator=torch.Generator().manual_seed(seed)).tolist()
        request = Request(prompt_ids=np.asarray(token_ids, dtype=np.int32), params=params, uniforms=uniforms)
        self._open[request_id] = request
        request.future.set_running_or_notify_cancel()  # only the compute thread may end it
        timer = asyncio.get_running_loop().call_later(deadline.remaining_s(), self._end, request)
        try:
            self._submit(lambda: scheduler.waiting.append(request))
            return await asyncio.wrap_future(request.future)
        finally:
            timer.cancel()
            del self._open[request_id]
            self._end(request)  # it may have been cancelled

    async def abort(self, request_id: str) -> None:
        """End a request with its tokens so far; unknown ids are ignored."""
        if request := self._open.get(request_id):
            await self._call(lambda: self._scheduler.end(request))

    async def sleep(self) -> None:
        """Drop the weights and the KV cache; see `Engine`."""
        self._scheduler.is_awake = False
        await self._call(self._scheduler.fall_asleep)

    async def wake(self, tags: tuple[str, ...]) -> None:
        """Go on with requests once `kv_cache` is among the tags and there are new weights."""
        if "weights" in tags:
            await self._call(self._scheduler.model.weights.take_memory)
        self._scheduler.is_awake |= "kv_cache" in tags
        await self._call(self._scheduler.stats)

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """Replace the weights between two steps; running requests go on, computed again from their tokens.

        Raises:
            EngineError: names or shapes do not match the model, or the publisher is gone; nothing has changed then.
        """
        await self._call(lambda: self._scheduler.load_weights(source, version))

    async def stats(self) -> EngineStats:
        """Return the load between two steps."""
        return await self._call(self._scheduler.stats)

    async def aclose(self) -> None:
        """Stop; open requests get an `EngineError`."""
        if self._over is None:
            await asyncio.wrap_future(self._thread.submit(self._fail, EngineDeadError("engine: it was closed")))
        await asyncio.to_thread(self._thread.shutdown)

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._submit(function))

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the compute thread between two steps, and keep stepping while there is work."""

        @torch.inference_mode()
        def run() -> T:
            result = function()
            if not self._is_stepping:
                self._is_stepping = True
                self._thread.submit(self._step)
            return result

        if self._over is not None:
            raise self._over
        return self._thread.submit(run)

    @torch.inference_mode()
    def _step(self) -> None:
        """Run one step, and queue the next behind other calls. A bug ends the engine and all requests."""
        self._is_stepping = self._over is None and self._scheduler.is_busy
        if not self._is_stepping:
            return
        try:
            self._scheduler.step()
        except Exception as error:
            logger.exception("engine: a step failed")
            self._fail(EngineDeadError(f"engine: it died of {type(error).__name__}: {error}"))
        self._thread.submit(self._step)

    def _end(self, request: Request) -> None:
        if self._over is None and not request.future.done():
            self._thread.submit(self._scheduler.end, request)

    def _fail(self, error: EngineError) -> None:
        self._over = error
        for request in list(self._open.values()):
            if not request.future.done():
                request.future.set_exception(error)

    def _load(self) -> None:
        model = LanguageModel(self._section, num_rows=self._num_rows, max_tokens=self._max_tokens)
        self._scheduler = BatchScheduler(model, StopStrings(lambda: text_decoder(self._section.path)))
