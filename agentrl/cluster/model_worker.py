"""One FSDP rank as a Ray worker: hands plain calls on to the actor that lives in `training/`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config.schema import RunConfig
from agentrl.types import Trajectory
from agentrl.weight_sync.base import WeightSource

if TYPE_CHECKING:
    from agentrl.training.parallel import Store
    from agentrl.training.sharding import UpdateShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one process group meet."""

    host: str
    port: int


class ModelWorker:
    """Plays the role `actor`; one instance per rank."""

    def __init__(self, config: RunConfig, role: str) -> None:
        """Build the actor; `setup` joins the other ranks and loads the model."""
        from agentrl.training.actor import Actor  # loads torch: in this process only

        self._role = role
        self._store: Store | None = None
        self._actor = Actor(
            config.model,
            config.actor,
            config.algorithm,
            temperature=config.rollout.temperature,
            max_response_tokens=config.rollout.max_response_tokens,
            seed=config.run.seed,
        )

    def rendezvous(self) -> Rendezvous:
        """Return an address at which this process, as rank 0, can be met."""
        from agentrl.training.parallel import open_store

        self._store = open_store("127.0.0.1")
        return Rendezvous(host="127.0.0.1", port=self._store.port)

    def setup(self, rank: int, world_size: int, at: Rendezvous) -> None:
        """Join the process group, load the model and shard it."""
        from agentrl.training.parallel import ParallelContext

        self._actor.setup(
            ParallelContext(
                rank=rank, world_size=world_size, master_addr=at.host, master_port=at.port, store=self._store
            )
        )

    def update(self, shard: "UpdateShard", *trajectories: Trajectory) -> dict[str, float]:
        """Make one step's update from this rank's share; every rank must be called."""
        return self._actor.update(shard, list(trajectories))

    def publish_weights(self) -> WeightSource | None:
        """Gather the weights; rank 0 says where they are, the others give None."""
        return self._actor.publish_weights()

    def save(self, path: str) -> None:
        """Write this rank's part of a checkpoint."""
        self._actor.save(path)

    def load(self, path: str) -> None:
        """Read this rank's part of a checkpoint."""
        self._actor.load(path)

    def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        self._actor.export(path)
