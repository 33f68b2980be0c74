"""The section `cluster`: processes, their places, and their roles."""

from typing import Any, Literal

from agentrl.config.schema.addresses import ClusterAddress
from agentrl.config.schema.fields import AmountOrZero, Count, CountOrZero, Seconds, Section, resumable


class PoolSection(Section):
    """A pool of equal processes under a name of your own; Ray reserves their resources together."""

    processes_per_node: list[Count] = resumable([])
    """Number of processes on each node, such as `[8, 8]`; every entry is a separate node."""
    num_processes: CountOrZero = resumable(0)
    """Number of processes on any nodes, as close together as possible; instead of `processes_per_node`."""
    num_cpus: AmountOrZero = resumable(1.0)
    """Ray CPUs of each process."""
    num_gpus: AmountOrZero = resumable(0.0)
    """GPUs of each process; roles that share the pool share them."""


class ExtraRoleSection(Section):
    """Workers of your own class, under the name of their role."""

    class_path: str
    """Import path of a plain class with `__init__(self, config, role)`, which the cluster runs as a worker."""
    pool: str = resumable(...)
    """Name of the pool that its processes run in."""
    config: dict[str, Any] = {}
    """Passed to its constructor as plain data."""


class ClusterSection(Section):
    """The Ray cluster that a run joins or starts, and the places of its roles."""

    address: ClusterAddress | None = resumable(None)
    """Address of a running Ray cluster (`10.0.0.1:6379`, or `auto` on one of its nodes); absent: the run starts its own."""
    gpu_memory_gb: AmountOrZero = resumable(0.0)
    """Memory of each GPU in GiB, such as of the cluster at `address`, for the estimate before the start; 0 reads the GPUs of
    this machine, if any.
    """
    max_wait_s: Seconds = resumable(1800.0)
    """Longest wait of a process for resources after a node was lost, in seconds; then the run ends with the reason."""
    pools: dict[str, PoolSection] = {}
    """Pools of processes, by name."""
    roles: dict[str, str] = resumable({})
    """Name of the pool of each role. `actor`, `rollout` and `ref` have processes of their own, or share processes as
    `actor_ref` or `actor_rollout_ref`. Absent: `actor.num_workers` processes that also hold the reference, and
    `rollout.num_engines` engines.
    """
    weight_transport: Literal["shared_memory", "broadcast", "cuda_ipc"] = resumable("shared_memory")
    """Transport of new weights to engines in separate processes. `shared_memory`: on the same machine, also from and to GPUs;
    `broadcast`: NCCL, to engines with GPUs of their own; `cuda_ipc`: to engines on the actor's GPUs. The last two have not run
    on GPUs yet.
    """
    check_weights: bool = resumable(False)
    """Compare a checksum of every weight that an engine reads from shared memory; takes a second or two per GB."""
    colocated: bool = resumable(False)
    """Let engines sleep while models train or score, and wake them with the new weights; for engines that share devices."""
    extra_roles: dict[str, ExtraRoleSection] = {}
    """Other workers, keyed by the name of their role, such as a model that serves a tool."""
