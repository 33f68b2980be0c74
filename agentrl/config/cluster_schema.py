"""The section `cluster`: which processes there are, where they are, and which role each plays."""

from dataclasses import dataclass, field
from typing import Any, Literal

from omegaconf import MISSING


@dataclass(frozen=True)
class PoolSection:
    """A number of equal processes, by a name of your own; Ray reserves their places together."""

    processes_per_node: list[int] = field(default_factory=list)
    """Processes on each of as many nodes, such as `[8, 8]`; every entry is a node of its own."""
    num_processes: int = 0
    """Processes wherever there is room, as near to each other as there is; instead of `processes_per_node`."""
    num_cpus: float = 1.0
    """Processors that each process takes from what Ray counts."""
    num_gpus: float = 0.0
    """GPUs of each process; roles that share the pool share them."""


@dataclass(frozen=True)
class ExtraRoleSection:
    """Workers of a class of your own, by the name of their role."""

    class_path: str = MISSING
    """Import path of a plain class with `__init__(self, config, role)`; the cluster makes a worker of it."""
    pool: str = MISSING
    """Name of the pool of its processes."""
    config: dict[str, Any] = field(default_factory=dict)
    """Passed to its constructor as plain data."""


@dataclass(frozen=True)
class ClusterSection:
    """Ray: the cluster that a run joins or starts, and the places of its roles."""

    address: str | None = None
    """Address of a running Ray cluster (`10.0.0.1:6379`, or `auto` on one of its nodes); absent: the run starts its own."""
    gpu_memory_gb: float = 0.0
    """GiB of each GPU of the cluster at `address`, or instead of what the GPUs of this machine say, for the estimate that is
    made before anything starts; 0 takes those of this machine, if any.
    """
    max_wait_s: float = 1800.0
    """How long a process may wait for room, after a node has left, before the run ends with the reason."""
    pools: dict[str, PoolSection] = field(default_factory=dict)
    """Pools of processes, by name."""
    roles: dict[str, str] = field(default_factory=dict)
    """Name of the pool of each role. `actor`, `rollout` and `ref` have processes of their own, or play together in each
    process, as `actor_ref` or `actor_rollout_ref`. Absent: `actor.num_workers` processes that also hold the reference, and
    `rollout.num_engines` engines.
    """
    weight_transport: Literal["shared_memory", "broadcast", "cuda_ipc"] = "shared_memory"
    """How new weights reach engines in processes of their own. `shared_memory`: on the same machine, also from and to GPUs;
    `broadcast`: NCCL, to engines with GPUs of their own; `cuda_ipc`: to engines on the actor's GPUs. The last two have not run
    on GPUs yet.
    """
    check_weights: bool = False
    """Compare a checksum of every weight that an engine reads from shared memory: a second or two for each GB of a sync."""
    colocated: bool = False
    """Engines sleep while models train or are asked, and wake with the new weights: for engines that share their devices."""
    extra_roles: dict[str, ExtraRoleSection] = field(default_factory=dict)
    """Workers of other kinds beside the policy, by the name of their role, such as a model that serves a tool."""
