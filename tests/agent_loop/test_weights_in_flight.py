"""New weights while trajectories are being sampled, seen from the loop: they go on, and say which version wrote what."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from transformers import AutoModelForCausalLM

from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.config.validation.relations import Purpose
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.observability.progress import RunProgress
from agentrl.runners.simulate import start
from agentrl.simulation.reward import SIMULATED_REWARD
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Prompt, Trajectory
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import until_generated

POLICY = str(Path(__file__).parents[2] / "examples" / "arithmetic" / "policy")
NO_WEIGHTS = WeightSource(transport=Transport.SHARED_MEMORY, address="", size_bytes=0, tensors=())
NUM_STEPS = 5
UPDATE_S = 10.0


def played(max_staleness: int) -> Mapping[str, tuple[int, Trajectory]]:
    """Play a run on simulated engines; gives the step and the trajectory by its id."""
    overrides = ["rollout.prompts_per_step=4", "rollout.samples_per_prompt=2", "rollout.num_engines=2"]
    loaded = load_run_config(
        "configs/simulate.yaml", [*overrides, f"rollout.max_staleness={max_staleness}"], purpose=Purpose.SIMULATION
    )

    async def main() -> Mapping[str, tuple[int, Trajectory]]:
        run, rollout, trajectories = await start(loaded), loaded.config.rollout, {}
        progress = RunProgress(Console(quiet=True), num_steps=NUM_STEPS)
        async with RolloutStream(run.rollouts, run.prompts, rollout, num_steps=NUM_STEPS, progress=progress) as stream:
            for step in range(1, NUM_STEPS + 1):
                for item in await stream.take(4, step=step):
                    trajectories |= {
                        trajectory.summary.trajectory_id: (step, trajectory.ref)
                        for trajectory in item.group.trajectories
                    }
                await asyncio.sleep(UPDATE_S)
                for engine in run.engines:
                    await engine.load_weights(NO_WEIGHTS, version=step)
        return trajectories

    return run_in_virtual_time(main())


def versions(trajectory: Trajectory) -> list[int]:
    return [version for _, version in trajectory.version_spans]


def test_simulated_trajectories_run_through_updates_and_lose_no_token():
    synchronous, asynchronous = played(0), played(2)
    assert len(synchronous) == NUM_STEPS * 8
    assert all(set(versions(trajectory)) == {step - 1} for step, trajectory in synchronous.values())
    assert {name: trajectory.token_ids for name, (_, trajectory) in synchronous.items()} == {
        name: trajectory.token_ids for name, (_, trajectory) in asynchronous.items()
    }
    crossed = [trajectory for _, trajectory in asynchronous.values() if len(set(versions(trajectory))) > 1]
    assert len(crossed) >= 8, "of those that began after the first batch"
    assert all(versions(trajectory) == sorted(versions(trajectory)) for trajectory in crossed)
    assert all(step - 3 <= min(versions(trajectory)) for step, trajectory in asynchronous.values())


async def test_an_episode_on_the_embedded_engine_goes_on_through_an_update(tmp_path: Path):
    """The weights are the same again, so the tokens must be too: what runs loses nothing."""
    rollout = RolloutSection(max_concurrent_trajectories=4, max_response_tokens=200, max_turns=2)
    engine = TransformersEngine(ModelSection(path=POLICY), rollout, max_tokens=2248)
    reward = RewardSection(class_name=SIMULATED_REWARD)
    worker = AgentLoopWorker(
        WorkerConfig(
            model=ModelSection(path=POLICY), rollout=rollout, reward=reward, tools=(), run_seed=0, run_dir=str(tmp_path)
        ),
        "agent_loop",
    )
    messages = [{"role": "user", "content": "Compute 12 + 30."}]
    request = TrajectoryRequest(step=1, prompt=Prompt(prompt_id="p", messages=messages), sample_index=0)
    publisher = SharedMemoryPublisher()
    await engine.start()
    try:
        _, alone = await worker.run(request, engine)
        crossed, version = alone, 0
        weights = AutoModelForCausalLM.from_pretrained(POLICY).named_parameters()
        source = publisher.publish((name, parameter.data) for name, parameter in weights)
        for version in range(1, 30):  # the engine may be done before this process comes to its turn
            num_before = (await engine.stats()).num_generated_tokens
            running = asyncio.create_task(worker.run(request, engine))
            await until_generated(engine, num_before + 3)
            await engine.load_weights(source, version=version)
            _, crossed = await running
            if versions(crossed)[0] < versions(crossed)[-1]:
                break
    finally:
        publisher.close()
        await engine.aclose()
        await worker.aclose()
    assert versions(crossed)[:2] == [version - 1, version]
    assert crossed.token_ids == alone.token_ids
