import asyncio

import pytest

from agentrl import clock
from agentrl.errors import ConfigError
from agentrl.simulation.tool import SimulatedTool
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.tools.base import Episode
from agentrl.types import Deadline, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")


async def times_of(tool: SimulatedTool, seeds: range) -> list[float]:
    async def call(seed: int) -> float:
        before = clock.now()
        result = await tool.call(EPISODE, {"seed": seed}, deadline=Deadline.after(1e6))
        assert result.status is ToolStatus.OK
        return clock.now() - before

    return list(await asyncio.gather(*(call(seed) for seed in seeds)))


def test_times_have_the_median_and_the_bounds_of_the_config():
    async def main() -> list[float]:
        return await times_of(
            SimulatedTool({"time_median_s": 0.3, "min_time_s": 0.1, "max_time_s": 2.0}, None), range(2000)
        )

    times = sorted(run_in_virtual_time(main()))
    assert times[1000] == pytest.approx(0.3, rel=0.1)
    assert (times[0], times[-1]) == (pytest.approx(0.1), pytest.approx(2.0))


def test_calls_beyond_the_slots_wait():
    async def main() -> list[float]:
        config = {"time_median_s": 1.0, "time_sigma": 0.0, "num_slots": 2}
        return await times_of(SimulatedTool(config, None), range(6))

    assert sorted(run_in_virtual_time(main())) == pytest.approx([1, 1, 2, 2, 3, 3])


def test_a_deadline_ends_a_call():
    async def main() -> None:
        tool = SimulatedTool({"time_median_s": 3.0, "time_sigma": 0.0}, None)
        result = await tool.call(EPISODE, {"seed": 0}, deadline=Deadline.after(1.0))
        assert (result.status, clock.now()) == (ToolStatus.TIMEOUT, pytest.approx(1.0))

    run_in_virtual_time(main())


def test_a_wrong_key_is_named():
    with pytest.raises(ConfigError, match="time_medan_s"):
        SimulatedTool({"time_medan_s": 1.0}, None)
