"""The role `rollout` in the process of others, such as `actor_rollout`: a model worker that is an engine too."""

from agentrl.cluster.engine_worker import EngineWorker
from agentrl.cluster.model_worker import ModelWorker
from agentrl.config.schema import RunConfig


class ModelEngineWorker(ModelWorker, EngineWorker):
    """Computes in a thread of each kind, so that it generates, aborts and answers while a model is updated."""

    def __init__(self, config: RunConfig, role: str) -> None:
        """Build the components and the engine; `setup` loads the models, `start` the engine's."""
        ModelWorker.__init__(self, config, role)
        EngineWorker.__init__(self, config, role)
