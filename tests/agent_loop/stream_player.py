"""A stream of rollouts over the real manager, whose trajectories only take time; play it in virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.schema.run import RolloutSection
from agentrl.data.prompts import PromptDataset
from agentrl.types import TrajectorySummary
from tests.summaries import short_summary

PROMPTS_PER_STEP, SAMPLES = 4, 3


class Player:
    """A worker, and the engine behind it: a trajectory carries the policy version at which it began."""

    def __init__(self, duration_s: Callable[[str], float]) -> None:
        self.duration_s = duration_s
        self.policy_version = 0
        self.started: list[str] = []
        self.num_running = 0

    async def call_keeping_second(self, method: str, request: TrajectoryRequest, engine: str) -> tuple[Any, Any]:
        assert method == "run"
        summary = summary_of(request.trajectory_id, request.prompt.prompt_id, self.policy_version)
        self.started.append(request.trajectory_id)
        self.num_running += 1
        try:
            await asyncio.sleep(self.duration_s(request.trajectory_id))
        finally:
            self.num_running -= 1
        return summary, request.trajectory_id

    async def ping(self) -> None: ...

    async def save_group(self, path: Path, *trajectory_ids: str) -> str:
        write(path, {"ids": trajectory_ids, "version": self.policy_version})
        return f"digest of {path.name}"

    async def call_keeping_rest(
        self, method: str, num_kept: int, path: Path, num_trajectories: int, digest: str | None, source: str
    ) -> tuple[Any, list[Any]]:
        assert method == "load_group"
        assert source
        assert digest == f"digest of {path.name}"
        saved = read(path)
        assert len(saved["ids"]) == num_kept == num_trajectories
        return [
            summary_of(name, name.split("-", 1)[1].rpartition("-")[0], saved["version"]) for name in saved["ids"]
        ], saved["ids"]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def summary_of(trajectory_id: str, prompt_id: str, policy_version: int) -> TrajectorySummary:
    return short_summary(
        prompt_id,
        int(trajectory_id.rpartition("-")[2]),
        trajectory_id=trajectory_id,
        policy_version=policy_version,
    )


class SilentProgress:
    """Counts what is still missing of the rollout that is waited for."""

    def __init__(self) -> None:
        self.missing: list[int] = []

    def start_rollout(self, description: str, *, num_trajectories: int) -> None:
        self.missing.append(num_trajectories)

    def finish_trajectory(self, *, num_tokens: int) -> None:
        self.missing[-1] -= 1


def heavy_tail(seed: int) -> Callable[[str], float]:
    return lambda trajectory_id: random.Random(f"{seed}/{trajectory_id}").lognormvariate(0, 1.5)


@asynccontextmanager
async def streaming(
    player: Player,
    prompts: PromptDataset,
    *,
    num_steps: int = 10,
    progress: SilentProgress | None = None,
    first_step: int = 1,
    first_position: int = 0,
    **rollout: Any,
) -> AsyncIterator[RolloutStream]:
    section = RolloutSection(prompts_per_step=PROMPTS_PER_STEP, samples_per_prompt=SAMPLES, **rollout)
    parts: Any = [player]
    engine: Any = "engine"
    manager = AgentLoopManager(
        section,
        EngineFleet(lambda _: engine, num_engines=1),
        parts,
        max_prompt_tokens=2048,
        kv_tokens=[0],
        reward_timeout_s=1,
        max_wait_s=1,
    )
    shown: Any = progress or SilentProgress()
    async with RolloutStream(
        manager,
        prompts,
        section,
        num_steps=num_steps,
        progress=shown,
        first_step=first_step,
        first_position=first_position,
    ) as stream:
        yield stream


async def train(
    stream: RolloutStream,
    player: Player,
    *,
    num_steps: int = 10,
    update_s: float = 1.0,
    refills: Callable[[int], int] = lambda step: 0,
) -> list[list[str]]:
    """Learn from every batch; gives the prompts of each. `refills` says how many groups of a step are replaced."""
    batches = []
    for step in range(player.policy_version + 1, num_steps + 1):
        taken = await stream.take(PROMPTS_PER_STEP, step=step)
        if count := refills(step):
            taken += await stream.take(count, step=step)
        batches.append([item.prompt.prompt_id for item in taken])
        await asyncio.sleep(update_s)
        player.policy_version = step
    return batches


def names(prompts: PromptDataset, count: int) -> list[str]:
    return [prompts.at(number).prompt_id for number in range(count)]
