"""Several roles on the GPUs of one pool: in a process of its own, since a process has one Ray only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_each_rank_has_a_gpu_of_its_own_among_its_role_and_shares_it_with_that_rank_of_the_others():
    driver = subprocess.run(
        [sys.executable, "-m", "tests.cluster.shared_gpus"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [line for line in driver.stdout.splitlines() if line.startswith(("[", "{"))]
    assert len(lines) == 2, driver.stderr[-3000:]
    with_gpu, without = json.loads(lines[0])["visible"]
    assert with_gpu in ("0", "1", "2", "3")
    assert without == "", "it would compute on the first GPU beside the process that has asked for it"
    cases = json.loads(lines[1])
    assert [(len(roles[0]), len(roles)) for roles in cases] == [(2, 2), (2, 3), (4, 2), (4, 3)]
    for roles in cases:
        assert len({gpu for [gpu] in roles[0]}) == len(roles[0]), "two ranks of a role on one GPU"
        assert all(role == roles[0] for role in roles), "the ranks of a number are not on one GPU"
