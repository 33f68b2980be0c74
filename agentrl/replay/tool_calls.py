"""The recorded calls of trajectories once more: do the tools still answer the same?

The policy's words come from the record. Each trajectory is an episode of its own, and its calls are made turn by turn.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from agentrl.errors import DataError, RolloutError
from agentrl.judge.connection import ToolContext
from agentrl.replay.recorded_run import RecordedRun, RecordedStep
from agentrl.run.judges import driver_judge
from agentrl.tools.base import Episode
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.types import Deadline, ToolCall, ToolResult, Trajectory

_NUM_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReplay:
    """A recorded call and its new result."""

    trajectory_id: str
    turn: int
    tool: str
    recorded: ToolResult
    replayed: ToolResult | None
    """None if the tool's infrastructure failed."""

    @property
    def is_equal(self) -> bool:
        """True if the policy would read the same; of a text that was cut, only the status is compared."""
        new = self.replayed
        if new is None or new.status is not self.recorded.status:
            return False
        return self.recorded.truncated or new.text == self.recorded.text


@contextlib.asynccontextmanager
async def started_tools(run: RecordedRun) -> AsyncIterator[ToolExecutor]:
    """Start the config's tools, with a judge if they need one."""
    judge = run.config.judge.model_copy(update={"placement": "driver"})
    async with driver_judge(run.tools, run.config.reward, judge) as address:
        context = ToolContext(judge=address)
        tools = ToolExecutor(build_tools(run.tools, context), timeout_s=run.config.rollout.tool_timeout_s)
        await tools.start()
        async with contextlib.aclosing(tools):
            yield tools


async def replay_calls(recorded: RecordedStep, tools: ToolExecutor) -> list[CallReplay]:
    """Make the calls of a step's trajectories, many trajectories at once."""
    places = asyncio.Semaphore(_NUM_AT_ONCE)

    async def replayed(trajectory: Trajectory) -> list[CallReplay]:
        async with places:
            return await _replay_trajectory(trajectory, recorded, tools)

    called = [trajectory for trajectory in recorded.trajectories if trajectory.tool_results]
    return [call for calls in await asyncio.gather(*map(replayed, called)) for call in calls]


async def _replay_trajectory(trajectory: Trajectory, recorded: RecordedStep, tools: ToolExecutor) -> list[CallReplay]:
    prompt = recorded.prompts[trajectory.prompt_id]
    episode = Episode(
        episode_id=f"replay-{trajectory.trajectory_id}", prompt_id=trajectory.prompt_id, extra=prompt.extra
    )
    replays: list[CallReplay] = []
    try:
        for number, turn in enumerate(trajectory.turns, start=1):
            results = await _results(tools, turn.calls[: len(turn.results)], episode)
            replays += [
                CallReplay(
                    trajectory_id=trajectory.trajectory_id, turn=number, tool=call.name, recorded=before, replayed=after
                )
                for call, before, after in zip(turn.calls, turn.results, results, strict=False)
            ]
    finally:
        await tools.end_episode(episode)
    return replays


async def _results(
    tools: ToolExecutor, calls: Sequence[ToolCall], episode: Episode
) -> Sequence[ToolResult] | Sequence[None]:
    if not calls:
        return ()
    try:
        return await tools.execute(calls, episode, deadline=Deadline.after(tools.timeout_s))
    except (RolloutError, DataError):
        return [None] * len(calls)
