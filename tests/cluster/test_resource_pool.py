"""What a pool needs against what a cluster has; with a real Ray, places that are reserved and given back."""

from pathlib import Path

import pytest
import ray

from agentrl.cluster.resource_pool import missing, reserve
from agentrl.cluster.spawn import spawn
from agentrl.config.cluster_schema import PoolSection
from agentrl.errors import ConfigError
from tests.cluster.workers import PlainWorker

NODE = {"CPU": 8.0, "GPU": 4.0}


def test_bundles_share_a_node_unless_each_needs_one_of_its_own():
    bundles = [{"CPU": 4.0}, {"CPU": 4.0}]
    assert missing("a", bundles, total=[NODE], spread=False) is None
    assert missing("a", bundles, total=[NODE, NODE], spread=True) is None
    assert "each on a node of its own" in (missing("a", bundles, total=[NODE], spread=True) or "")


def test_what_is_missing_is_said_with_what_the_nodes_have():
    message = missing("train", [{"CPU": 1.0, "GPU": 8.0}], total=[NODE, NODE], spread=True) or ""
    assert "`cluster.pools.train` needs 1 x (CPU 1, GPU 8)" in message
    assert "The nodes have: 1 x (CPU 8, GPU 4); 1 x (CPU 8, GPU 4)" in message


def test_a_large_bundle_is_not_kept_out_by_small_ones():
    bundles = [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 8.0}]
    assert missing("a", bundles, total=[NODE, {"CPU": 2.0}], spread=False) is None


@pytest.mark.ray
async def test_a_pool_is_reserved_for_its_roles_and_given_back(local_ray: Path):
    pool = await reserve("a", PoolSection(num_processes=2, num_cpus=0.5), roles=["one", "other"])
    places = pool.places("one")
    assert [(place.num_cpus, place.bundle) for place in places] == [(0.25, (pool.group, 0)), (0.25, (pool.group, 1))]
    workers = [
        spawn(PlainWorker, place, {}, "echo", max_concurrency=1)[0] for place in [*places, *pool.places("other")]
    ]
    assert len({pid for _, _, pid in [await worker.describe() for worker in workers]}) == 4
    pool.give_back()


@pytest.mark.ray
async def test_what_a_cluster_does_not_have_is_refused_at_once(local_ray: Path):
    num_cpus = int(ray.cluster_resources()["CPU"])
    with pytest.raises(ConfigError, match=rf"`cluster.pools.a` needs .*The nodes have: 1 x \(CPU {num_cpus}\)"):
        await reserve("a", PoolSection(num_processes=num_cpus + 1), roles=["echo"])


@pytest.mark.ray
async def test_what_others_hold_is_said_with_their_names(local_ray: Path):
    num_cpus = int(ray.cluster_resources()["CPU"])
    # Workers of earlier tests give their processors back when their handles are gone, so most of them are free.
    held = await reserve("policy", PoolSection(num_processes=1, num_cpus=num_cpus / 2 + 0.5), roles=["echo"])
    with pytest.raises(ConfigError, match=r"not free within 1 s. Held by: .*agentrl pool policy \("):
        await reserve("aside", PoolSection(num_processes=1, num_cpus=num_cpus / 2 + 0.5), roles=["echo"], timeout_s=1.0)
    held.give_back()
