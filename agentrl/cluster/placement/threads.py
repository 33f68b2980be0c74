"""CPU threads of engines and ranks: processes that compute at the same time share the cores of a machine.

Engines and ranks take turns with all cores, unless rollouts go on while the actor is updated (`rollout.max_staleness`).
"""

import os

from agentrl.config.layout import layout, processes_per_node
from agentrl.config.schema.run import RunConfig


def num_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(config: RunConfig, cores: int | None = None) -> int:
    """Return the CPU threads of one actor rank on a machine with `cores`; absent: those of this machine."""
    share = _cores_of_models(config, cores or num_cores())
    return max(1, share // processes_per_node(config, "actor"))


def threads_per_engine(config: RunConfig, cores: int | None = None) -> int:
    """Return the CPU threads of one engine; see `threads_per_rank`."""
    cores = cores or num_cores()
    share = cores - _cores_of_models(config, cores) if _computes_at_once(config) else cores
    return max(1, share // _engines_per_node(config))


def _engines_per_node(config: RunConfig) -> int:
    """Return the number of engines that share a node; 1 if a cluster may spread them in any way."""
    pool = next(placement.pool for placement in layout(config) if "rollout" in placement.components)
    is_known = pool is not None and config.cluster.pools[pool].processes_per_node
    return processes_per_node(config, "rollout") if is_known or config.cluster.address is None else 1


def _cores_of_models(config: RunConfig, cores: int) -> int:
    return cores // 2 if _computes_at_once(config) else cores


def _computes_at_once(config: RunConfig) -> bool:
    return config.rollout.max_staleness > 0 and not config.cluster.colocated and config.cluster.address is None
