"""A run that joins a Ray of two nodes: in a process of its own, since a process has one Ray only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def with_token(home: Path) -> dict[str, str]:
    """Return the environment of a user whose earlier Ray has left a token."""
    folder = home / ".ray"
    folder.mkdir()
    (folder / "auth_token").write_text("0" * 64)
    return {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | {"HOME": str(home)}


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a driver saw in a cluster without a token, on a machine that has one."""
    driver = subprocess.run(
        [sys.executable, "-m", "tests.cluster.joining"],
        cwd=ROOT,
        env=with_token(tmp_path_factory.mktemp("home")),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in driver.stdout.splitlines() if line.startswith("{")]
    assert lines, driver.stderr[-3000:]
    return json.loads(lines[0])


def test_a_run_joins_a_cluster_with_the_nodes_that_it_has_and_spreads_its_pool_over_them(saw: dict[str, Any]):
    assert saw["num_cpus"] == 2, "those of the cluster, not those that a Ray of its own would declare"
    assert sorted(saw["nodes"]) == ["127.0.0.2", "127.0.0.3"]
    assert "`cluster.pools.three` needs 3 x (CPU 1), each on a node of its own" in saw["refusal"]


def test_a_node_that_left_is_waited_for_where_the_run_starts_again_and_not_at_its_first_start(saw: dict[str, Any]):
    after_a_loss = saw["after_a_loss"]
    assert "let more nodes join before the start" in after_a_loss["first"]
    assert (after_a_loss["waited"], after_a_loss["pools"]) == (True, ["policy"])
