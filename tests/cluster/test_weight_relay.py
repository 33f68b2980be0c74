"""Weights for engines on another Ray node, and results that are gone with it: on two nodes, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.relaying import NUM_ELEMENTS

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def saw() -> dict[str, Any]:
    driver = subprocess.run(
        [sys.executable, "-m", "tests.cluster.relaying"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [line for line in driver.stdout.splitlines() if line.startswith("{")]
    assert lines, driver.stderr[-3000:]
    return json.loads(lines[0])


def test_engines_on_another_node_load_the_weights_from_memory_of_that_node(saw: dict[str, Any]):
    far, also_far, near = saw["engines"]
    assert [total for _, total in saw["engines"]] == [2.0 * NUM_ELEMENTS] * 3
    assert set(near[0]) == {saw["published"]}
    assert far[0] == also_far[0], "one copy serves both"
    assert saw["published"] not in far[0]


def test_data_lost_with_its_node_is_reported_as_lost_to_every_reader(saw: dict[str, Any]):
    assert (saw["fetched"], saw["passed_on"]) == ("lost", "lost")
