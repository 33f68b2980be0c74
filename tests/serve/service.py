"""A service whose workers are played by a function, behind real HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from aiohttp.test_utils import unused_port

from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.trajectory_records import (
    TrajectoryRequest,
    WorkerReport,
    failed_trajectory,
)
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.schema.run import ModelSection, RolloutSection, RunConfig, ServiceSection
from agentrl.judge.stats import JudgeStats
from agentrl.observability.loop_lag import Lag
from agentrl.rewards.math_answer import AnswerStats
from agentrl.serve.app import ServiceApp, listening
from agentrl.serve.plan import bind
from agentrl.serve.requests import PromptReader
from agentrl.serve.rollouts import RolloutService
from agentrl.serve.weights import PolicyWeights
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Failure, FailureClass, Prompt, Termination, Trajectory, Turn
from tests.fakes import ScriptedEngine

LOST = Failure(failure_class=FailureClass.JUDGE, message="the judge is away")


def played(request: TrajectoryRequest) -> Trajectory:
    """Return a short trajectory: a prompt of two tokens, one sampled, one observed, one sampled."""
    return Trajectory(
        trajectory_id=request.trajectory_id,
        prompt_id=request.prompt.prompt_id,
        sample_index=request.sample_index,
        token_ids=[5, 6, 7, 8, 9],
        num_prompt_tokens=2,
        response_mask=[0, 0, 1, 0, 1],
        rollout_logprobs=[float("nan"), float("nan"), -0.5, float("nan"), -0.25],
        version_spans=((2, 0), (4, 0)),
        turns=(Turn(text="hello \ud800"),),
        termination=Termination.ANSWERED,
        reward=1.0,
    )


def lost(request: TrajectoryRequest) -> Trajectory:
    """Return the record of a trajectory that the infrastructure lost."""
    return failed_trajectory(request, [LOST])


@dataclass(eq=False)
class PlayedWorker:
    """The manager's view of a worker; `play` returns a trajectory, or raises, `delay_s(request)` seconds later."""

    play: Callable[[TrajectoryRequest], Trajectory] = played
    delay_s: Callable[[TrajectoryRequest], float] = lambda request: 0.0
    asked: list[TrajectoryRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def call_keeping_second(self, method: str, request: TrajectoryRequest, engine: Any) -> tuple[Any, Trajectory]:
        assert method == "run"
        self.asked.append(request)
        try:
            await asyncio.sleep(self.delay_s(request))
        except asyncio.CancelledError:
            self.cancelled.append(request.trajectory_id)
            raise
        trajectory = self.play(request)
        return summarise_trajectory(trajectory), trajectory

    async def prompt_lengths(self, prompts: list[Prompt]) -> dict[str, int]:
        return {prompt.prompt_id: len(str(prompt.messages[-1]["content"])) for prompt in prompts}

    async def report(self) -> WorkerReport:
        return WorkerReport(lag=Lag(p99_s=0.0, max_s=0.0), judge=JudgeStats(), answers=AnswerStats())

    async def ping(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Served:
    """A running service, and a client of it."""

    client: aiohttp.ClientSession
    worker: PlayedWorker
    rollouts: RolloutService
    engines: EngineFleet

    async def roll_out(self, *prompts: Any, **fields: Any) -> list[dict[str, Any]]:
        """Return all lines of a reply."""
        body = {"prompts": [{"prompt": text} for text in prompts]} | fields
        async with self.client.post("/v1/rollouts", json=body) as reply:
            assert reply.status == 200, await reply.text()
            return [json.loads(line) for line in (await reply.read()).splitlines()]


@contextlib.asynccontextmanager
async def served(
    worker: PlayedWorker | None = None, *, token: str | None = None, max_open: int = 8, engine: str = "transformers"
) -> AsyncIterator[Served]:
    """Run a service on a port of its own."""
    worker = worker or PlayedWorker()
    config = RunConfig(
        model=ModelSection(path="a/model"),
        rollout=RolloutSection(engine=cast(Any, engine), max_infra_error_share=1.0),
        service=ServiceSection(port=unused_port(), max_open_trajectories=max_open),
    )
    fleet = EngineFleet(lambda index: cast(Any, ScriptedEngine([])), num_engines=1)
    manager = AgentLoopManager(
        config.rollout,
        fleet,
        [cast(Any, worker)],
        max_prompt_tokens=100,
        kv_tokens=[0],
        reward_timeout_s=1,
        max_wait_s=1,
    )
    rollouts = RolloutService(manager, max_open=max_open, max_prompt_tokens=100)
    app = ServiceApp(rollouts, PolicyWeights(config, fleet), fleet, PromptReader(config.data, None)).build(token=token)
    url = f"http://127.0.0.1:{config.service.port}"
    with bind(config.service) as socket:
        async with listening(app, socket), aiohttp.ClientSession(url) as client:
            yield Served(client=client, worker=worker, rollouts=rollouts, engines=fleet)
    await manager._workers.aclose()
