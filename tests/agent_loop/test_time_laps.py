"""Split of the wall time of trajectories, on the virtual clock, so that the parts must add up to the microsecond."""

from dataclasses import replace

import pytest

from agentrl.agent_loop.trajectory_builder import TimeLaps
from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.runners.simulate import Simulation, simulate
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.timing import TIME_PARTS, TimeSplit

TOOLS = """
tools:
  - class_name: agentrl.simulation.tool.SimulatedTool
    config: {num_slots: 1}
"""
"""Slots of the judge, so few that calls queue: one per worker."""


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    tools = tmp_path_factory.mktemp("tools") / "tools.yaml"
    tools.write_text(TOOLS)
    overrides = [
        "rollout.prompts_per_step=6",
        "rollout.samples_per_prompt=8",
        "rollout.num_engines=2",
        "rollout.max_concurrent_trajectories=12",
        "simulated.max_running=4",
        f"tool_config_path={tools}",
    ]
    loaded = load_run_config("configs/simulate.yaml", overrides, purpose=Purpose.SIMULATION)
    return run_in_virtual_time(simulate(loaded))


def test_the_split_of_every_trajectory_adds_up_to_the_time_of_its_batch(simulation: Simulation):
    for summary in simulation.summaries:
        total_s = sum(getattr(summary.times, name) for name in TIME_PARTS)
        assert total_s == pytest.approx(simulation.makespan_s, abs=1e-6)
        assert min(getattr(summary.times, name) for name in TIME_PARTS) > -1e-6


def test_every_wait_is_found_where_it_was_made(simulation: Simulation):
    for part in ("admission_wait_s", "engine_queue_s", "generate_s", "judge_queue_s", "tool_s", "tail_wait_s"):
        assert any(getattr(summary.times, part) > 0.5 for summary in simulation.summaries), part
    for summary in simulation.summaries:  # these take no virtual time
        assert summary.times.tokenise_s + summary.times.dispatch_s + summary.times.retry_s < 1e-6


def test_a_wait_that_somebody_claims_is_never_longer_than_the_lap():
    laps = TimeLaps()
    laps.end("tool_s", queue="judge_queue_s", queue_s=1000.0)
    assert laps.split.tool_s == 0.0
    assert laps.split.judge_queue_s < 1.0
    laps.end("generate_s")
    assert replace(laps.split, generate_s=0.0, judge_queue_s=0.0) == TimeSplit()
