"""A run that joins a Ray of two nodes: in a process of its own, since a process has one Ray only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_a_run_joins_a_cluster_with_the_nodes_that_it_has_and_spreads_its_pool_over_them():
    driver = subprocess.run(
        [sys.executable, "-m", "tests.cluster.joining"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [line for line in driver.stdout.splitlines() if line.startswith("{")]
    assert lines, driver.stderr[-3000:]
    saw = json.loads(lines[0])
    assert saw["num_cpus"] == 2, "those of the cluster, not those that a Ray of its own would declare"
    assert sorted(saw["nodes"]) == ["127.0.0.2", "127.0.0.3"]
    assert "`cluster.pools.three` needs 3 x (CPU 1), each on a node of its own" in saw["refusal"]
