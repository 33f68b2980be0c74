"""An engine behind Ray, in a process of its own or in one of the models."""

import asyncio

from agentrl.cluster.placement.threads import threads_per_engine
from agentrl.cluster.workers.engine_calls import PackedEngine
from agentrl.cluster.workers.model_worker import ModelWorker, WorkerProcess
from agentrl.config.schema.run import RunConfig
from agentrl.engine.base import Engine, EngineStats
from agentrl.models.tokenizer import tokenizer_class
from agentrl.types import Completion, Deadline, SamplingParams
from agentrl.weight_sync.base import WeightSource


class EngineWorker(PackedEngine, WorkerProcess):
    """Builds the engine that the config names, and passes calls on; see `Engine` for them."""

    def __init__(self, config: RunConfig, role: str) -> None:
        PackedEngine.__init__(self)
        self._engine = _build_engine(config)

    async def start(self) -> None:
        """See `Engine.start`."""
        await self._engine.start()

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline, **copy: int
    ) -> Completion:
        """See `Engine.generate`, and `VllmEngine.generate` for `copy`."""
        return await self._engine.generate(token_ids, params, request_id=request_id, deadline=deadline, **copy)

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        await self._engine.abort(request_id)

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        await self._engine.sleep()

    async def wake(self, tags: tuple[str, ...]) -> None:
        """See `Engine.wake`."""
        await self._engine.wake(tags)

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        """See `Engine.load_weights`."""
        await self._engine.load_weights(source, version=version)

    async def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return await self._engine.stats()

    async def tokenizer_class(self, model_path: str) -> str | None:
        """See `agentrl.models.tokenizer`."""
        return await asyncio.to_thread(tokenizer_class, model_path)


class ModelEngineWorker(ModelWorker, EngineWorker):
    """Model worker that is an engine too, for roles such as `actor_rollout`.

    Model and engine compute in separate threads, so it generates and answers while a model is updated.
    """

    def __init__(self, config: RunConfig, role: str) -> None:
        ModelWorker.__init__(self, config, role)
        EngineWorker.__init__(self, config, role)


def _build_engine(config: RunConfig) -> Engine:
    max_tokens, num_threads = config.max_trajectory_tokens, threads_per_engine(config)
    match config.rollout.engine:
        case "transformers":
            from agentrl.engine.embedded.engine import TransformersEngine  # loads torch: in this process only

            return TransformersEngine(config.model, config.rollout, max_tokens=max_tokens, num_threads=num_threads)
        case "openai":
            from agentrl.engine.openai.engine import OpenAIEngine

            return OpenAIEngine(config.model, config.rollout, max_tokens=max_tokens)
        case "vllm":
            from agentrl.engine.vllm.engine import VllmEngine  # loads vLLM: in this process only

            return VllmEngine(config.model, config.rollout, max_tokens=max_tokens, num_threads=num_threads)
