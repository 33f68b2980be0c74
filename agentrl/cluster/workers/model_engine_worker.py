"""A model worker that is an engine too, for roles such as `actor_rollout`."""

from agentrl.cluster.workers.engine_worker import EngineWorker
from agentrl.cluster.workers.model_worker import ModelWorker
from agentrl.config.schema.run import RunConfig


class ModelEngineWorker(ModelWorker, EngineWorker):
    """Model and engine compute in separate threads, so it generates and answers while a model is updated."""

    def __init__(self, config: RunConfig, role: str) -> None:
        """Build the components and the engine; `setup` loads the models, `start` the engine's."""
        ModelWorker.__init__(self, config, role)
        EngineWorker.__init__(self, config, role)
