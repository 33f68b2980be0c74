"""Places for the processes of a run: a pool of the config becomes a Ray placement group, all or nothing.

Ray itself would wait for ever, and silently, for resources that a cluster lacks. So a pool is compared with the cluster first,
and an error says what is missing and who holds it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from agentrl.cluster.ray.spawn import ResourcePool
from agentrl.config.layout import gpu_shares, pool_size
from agentrl.config.schema.cluster import ClusterSection, PoolSection
from agentrl.errors import InsufficientResourcesError

logger = logging.getLogger(__name__)

RESERVE_TIMEOUT_S = 120.0
"""Limit for the first reservation; free resources take a second, resources that are being released take longer."""
_ROUNDING = 1e-4
"""Error of sums of GPU fractions; Ray's own resolution."""

_MORE_NODES = "let more nodes join before the start"
_ONE_NODE = "join a cluster of several nodes by `cluster.address`: the run's own Ray has this machine only"

Bundle = dict[str, float]
"""Resources that Ray reserves on one node. Example: `{"CPU": 8.0, "GPU": 8.0}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedPool:
    """Reserved places of one pool."""

    group: PlacementGroup
    places: Mapping[str, list[ResourcePool]]
    """Place of each process, keyed by role."""

    def release(self) -> None:
        """End what still runs there, and free the places."""
        remove_placement_group(self.group)


async def reserve(
    name: str, section: PoolSection, *, roles: Sequence[str], timeout_s: float = RESERVE_TIMEOUT_S
) -> ReservedPool:
    """Reserve the places of a pool for the roles that share it.

    Rank i of every role is on the same GPU if the roles are started one after another, in the order of `roles`.

    Raises:
        InsufficientResourcesError: they are not free within `timeout_s`.
    """
    bundles, spread = bundles_of(section), bool(section.processes_per_node)
    logger.info("pool %s: reserving %s, for up to %g s", name, _shown(bundles), timeout_s)
    group = placement_group(bundles, strategy="STRICT_SPREAD" if spread else "PACK", name=f"agentrl pool {name}")
    try:
        async with asyncio.timeout(timeout_s):
            await group.ready()
    except TimeoutError as error:
        remove_placement_group(group)
        raise InsufficientResourcesError(
            f"`cluster.pools.{name}`: {_shown(bundles)} were not free within {timeout_s:g} s. Held by: "
            f"{'; '.join(_holders()) or 'workers outside of any pool'}"
        ) from error
    logger.info("pool %s: %d processes, %s", name, pool_size(section), _shown(bundles))
    places = {
        role: [
            ResourcePool(
                num_processes=1,
                num_cpus=section.num_cpus / len(roles),
                num_gpus=num_gpus,
                bundle=(group, index),
                pool=f"`cluster.pools.{name}`, {_shown(bundles)}{_apart(spread)}",
            )
            for index, num_processes in enumerate(_per_bundle(section))
            for _ in range(num_processes)
        ]
        for role, num_gpus in zip(roles, gpu_shares(section.num_gpus, len(roles)), strict=True)
    }
    return ReservedPool(group=group, places=places)


def missing_resources(
    cluster: ClusterSection, needs: Mapping[str, Sequence[Bundle]], *, total: Sequence[Mapping[str, float]]
) -> str | None:
    """Return what a cluster lacks for a run, counting resources in use as present; None if nothing.

    Args:
        cluster: the pools, and the address of the cluster.
        needs: resources of all processes, keyed by the config key that sets their number; the pools included.
        total: all resources of each node.
    """
    problems = [_missing_in_total(needs, total=total)]
    problems += [_missing_for_pool(name, section, total=total) for name, section in cluster.pools.items()]
    problem = next(filter(None, problems), None)
    nodes = "; ".join(_shown([node]) for node in total) or "none"
    more = _MORE_NODES if cluster.address is not None else _ONE_NODE
    return problem and f"{problem}. The nodes have: {nodes}. Make the numbers and pools smaller, or {more}"


def _missing_in_total(needs: Mapping[str, Sequence[Bundle]], *, total: Sequence[Mapping[str, float]]) -> str | None:
    wanted, existing = _sum([bundle for bundles in needs.values() for bundle in bundles]), _sum(total)
    if all(amount <= existing.get(kind, 0.0) + _ROUNDING for kind, amount in wanted.items()):
        return None
    parts = "; ".join(f"`{key}`: {_shown(bundles)}" for key, bundles in needs.items() if bundles)
    return f"the run takes {_shown([wanted])} together, and the cluster has {_shown([existing])}. It takes {parts}"


def _missing_for_pool(name: str, section: PoolSection, *, total: Sequence[Mapping[str, float]]) -> str | None:
    """Return what is missing if a bundle fits no node, or if the nodes are too few; None if nothing."""
    bundles, spread = bundles_of(section), bool(section.processes_per_node)

    def fits_somewhere(bundle: Bundle) -> bool:
        return any(all(node.get(kind, 0.0) >= amount for kind, amount in bundle.items()) for node in total)

    if all(map(fits_somewhere, bundles)) and not (spread and len(bundles) > len(total)):
        return None
    return f"`cluster.pools.{name}` needs {_shown(bundles)}{_apart(spread)}, and not every one has room"


def bundles_of(section: PoolSection) -> list[Bundle]:
    """Return the bundles of a pool."""
    return [_bundle(section, num_processes) for num_processes in _per_bundle(section)]


def _per_bundle(section: PoolSection) -> tuple[int, ...]:
    return tuple(section.processes_per_node) or (1,) * section.num_processes


def _sum(bundles: Sequence[Mapping[str, float]]) -> Bundle:
    kinds = dict.fromkeys(kind for bundle in bundles for kind in bundle)
    return {kind: sum(bundle.get(kind, 0.0) for bundle in bundles) for kind in kinds}


def _bundle(section: PoolSection, num_processes: int) -> Bundle:
    amounts = {"CPU": section.num_cpus * num_processes, "GPU": section.num_gpus * num_processes}
    return {kind: amount for kind, amount in amounts.items() if amount} or {"CPU": 0.001}


def _holders() -> list[str]:
    table = placement_group_table()
    held = [entry for entry in table.values() if entry["state"] == "CREATED"]
    return [f"{entry['name'] or 'a placement group'} ({_shown(list(entry['bundles'].values()))})" for entry in held]


def _apart(spread: bool) -> str:
    return ", each on a node of its own" if spread else ""


def _shown(bundles: Sequence[Mapping[str, float]]) -> str:  # `2 x (CPU 8, GPU 8)`
    texts = [f"({', '.join(f'{kind} {amount:g}' for kind, amount in bundle.items())})" for bundle in bundles]
    return " + ".join(f"{texts.count(text)} x {text}" for text in dict.fromkeys(texts))
