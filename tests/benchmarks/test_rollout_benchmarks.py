"""The benchmarks of the rollouts still run: small, for what they play and not for how fast."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from agentrl.simulation.virtual_time import run_in_virtual_time
from benchmarks.rollout import loop_overhead, scheduler, service, staleness
from benchmarks.rollout.blocking_tool import play


def test_the_loop_alone_plays_its_script():
    row = uvloop.run(loop_overhead.measure_alone(2, turn_s=(0.05, 0.1)))
    assert row["CPU ms per turn"] != 0


@pytest.mark.slow
def test_trajectories_with_a_tool_that_blocks_are_played():
    assert min(uvloop.run(play("block", 2))) > 0


def test_the_schedule_is_measured_against_what_no_schedule_beats():
    row = scheduler.ample_row(8, prefill_ms=0.06)
    assert row["ratio"] >= 1
    assert row["over the bound"] >= 1


def test_a_run_without_staleness_has_none_and_counts_the_weight_syncs():
    row = run_in_virtual_time(staleness.train(max_staleness=0, num_steps=1, update_s=0.0, num_prompts=2))
    assert row["staleness max"] == 0
    assert row["run s"] * (1 - row["actor waits"]) > 1.99


@pytest.mark.soak  # starts Ray; the service has tests of its own
@pytest.mark.ray
def test_the_service_is_measured_beside_an_evaluation(tmp_path: Path, restored_logging: None):
    row = asyncio.run(service.measure(4, 2, 8, tmp_path / "run"))
    assert min(row["evaluation, CPU ms per trajectory"], row["service, CPU ms per trajectory"]) > 0
    assert 0 < row["without the episode"] < row["first line, ms (median)"]
    assert row["cancelled, s (largest)"] > 0
