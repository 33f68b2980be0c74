"""Assignment of roles to processes: `cluster.roles` and `cluster.pools`, or the default layout without them."""

from dataclasses import dataclass

from agentrl.config.schema.cluster import PoolSection
from agentrl.config.schema.run import RunConfig

COMPONENTS = ("actor", "rollout", "ref", "critic", "reward")
"""Components that form roles, joined by `_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The processes of one role. Example: `Placement(role="actor_ref", pool="train", num_processes=2)`."""

    role: str
    num_processes: int
    pool: str | None = None
    """Name of the pool; None: every process takes a core, and a GPU if there are any."""

    @property
    def components(self) -> tuple[str, ...]:
        """Components that each process holds."""
        return tuple(self.role.split("_"))


def needed_components(config: RunConfig) -> list[str]:
    """Return the components that the algorithm needs."""
    wanted = {"ref": config.has_reference_model, "critic": config.has_critic, "reward": config.has_reward_model}
    return ["actor", "rollout", *(component for component, is_wanted in wanted.items() if is_wanted)]


def pool_size(section: PoolSection) -> int:
    """Return the number of processes of a pool."""
    return sum(section.processes_per_node) or section.num_processes


def pool_users(config: RunConfig, pool: str) -> list[str]:
    """Return the keys of the roles that share a pool, in the order of their start: engines last."""
    placed = [f"cluster.roles.{role}" for role in config.cluster.roles if "rollout" not in role.split("_")]
    with_engines = [f"cluster.roles.{role}" for role in config.cluster.roles if "rollout" in role.split("_")]
    extra = [f"cluster.extra_roles.{role}" for role in config.cluster.extra_roles]
    pool_of = {f"cluster.roles.{role}": name for role, name in config.cluster.roles.items()}
    pool_of |= {f"cluster.extra_roles.{role}": section.pool for role, section in config.cluster.extra_roles.items()}
    return [key for key in (*placed, *extra, *with_engines) if pool_of[key] == pool]


def gpu_shares(num_gpus: float, num_roles: int) -> list[float]:
    """Return the GPUs per process of each role that shares a pool, in the order of their start.

    Args:
        num_gpus: GPUs of each process of the pool (`PoolSection.num_gpus`).
        num_roles: number of roles that share the pool.
    """
    if num_gpus != 1:
        return [num_gpus / num_roles] * num_roles
    # Ray fills a GPU before it uses the next, so equal shares would put several ranks of a role on one GPU, which NCCL refuses.
    # Each share is more than half of what the earlier roles left of a GPU, so a second rank of the role does not fit.
    thousandths, left = [], 1000
    for _ in range(num_roles - 1):
        thousandths.append(left // 2 + 1)
        left -= thousandths[-1]
    return [share / 1000 for share in (*thousandths, left)]


def layout(config: RunConfig) -> list[Placement]:
    """Return the placement of every role of a checked config; engines come last, since they use the memory that is left."""
    if not config.cluster.roles:
        with_actor = [name for name in needed_components(config) if name != "rollout"]
        return [
            Placement(role="_".join(with_actor), num_processes=config.actor.num_workers),
            Placement(role="rollout", num_processes=config.rollout.num_engines),
        ]
    placed = [
        Placement(role=role, num_processes=pool_size(config.cluster.pools[pool]), pool=pool)
        for role, pool in config.cluster.roles.items()
    ]
    return sorted(placed, key=lambda placement: "rollout" in placement.components)


def processes_per_node(config: RunConfig, component: str) -> int:
    """Return the largest number of processes with a component (`actor`, `rollout`) that share the cores of a machine.

    Without `processes_per_node` these are all of them.
    """
    placement = next(item for item in layout(config) if component in item.components)
    per_node = [] if placement.pool is None else config.cluster.pools[placement.pool].processes_per_node
    return max(per_node, default=placement.num_processes)


def with_sizes_of_pools(config: RunConfig) -> RunConfig:
    """Return a checked config with the numbers of ranks and engines of their pools."""
    for placement in layout(config):
        if "actor" in placement.components:
            actor = config.actor.model_copy(update={"num_workers": placement.num_processes})
            config = config.model_copy(update={"actor": actor})
        if "rollout" in placement.components:
            rollout = config.rollout.model_copy(update={"num_engines": placement.num_processes})
            config = config.model_copy(update={"rollout": rollout})
    return config
