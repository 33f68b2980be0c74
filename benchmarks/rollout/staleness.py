"""Gain in trajectories per second of a run that rolls out while it trains, on simulated engines and a virtual clock.

    python -m benchmarks.rollout.staleness [--steps 8] [--json FILE]

Eight simulated engines (`configs/simulate.yaml`) play 512 trajectories per step with a heavy tail: 2 to 10 turns of log-normal
length, some prompts longer than others, tools of 0.05 to 5 s. An update takes half as long as a synchronous rollout: then a
synchronous run spends two thirds of its time in rollouts, as agents with tools do, and hiding the updates alone would give
no more than 1.5. The stream, the manager and the agent loop are those of a run; every schedule plays the same trajectories.
After each update new weights enter the engines: they stand still for two seconds, and so does the actor, in every schedule;
requests under way go on afterwards, once their keys and values are computed again, as those of ended turns are. What counts is
all that was learnt from over the time of the whole run, its first and last steps included, in which there is little to overlap.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from agentrl import clock
from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.observability.progress import RunProgress
from agentrl.runners.simulate import start
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.weight_sync.base import Transport, WeightSource
from benchmarks.judge import report

_CALIBRATION_STEPS = 2
_PROMPTS_PER_STEP = 32
_SAMPLES_PER_PROMPT = 16
_UPDATE_SHARE = 0.5
"""Time of an update as a share of a synchronous rollout's."""
_WEIGHT_SYNC_S = 2.0
"""Time for 16 GB of weights (an 8B model) at 8 GB/s."""
_NO_WEIGHTS = WeightSource(transport=Transport.SHARED_MEMORY, address="", size_bytes=0, tensors=())


async def train(
    *, max_staleness: int, num_steps: int, update_s: float, num_prompts: int = _PROMPTS_PER_STEP
) -> report.Row:
    """Play a run whose updates only take time."""
    overrides = [
        f"rollout.max_staleness={max_staleness}",
        f"rollout.prompts_per_step={num_prompts}",
        f"rollout.samples_per_prompt={_SAMPLES_PER_PROMPT}",
    ]
    loaded = load_run_config("configs/simulate.yaml", overrides, purpose=Purpose.SIMULATION)
    rollout, run = loaded.config.rollout, await start(loaded)
    progress = RunProgress(Console(quiet=True), num_steps=num_steps)
    waited_s = 0.0
    staleness: list[int] = []
    started_at = clock.now()
    async with RolloutStream(run.rollouts, run.prompts, rollout, num_steps=num_steps, progress=progress) as stream:
        for step in range(1, num_steps + 1):
            waits_since = clock.now()
            taken = await stream.take(num_prompts, step=step)
            waited_s += clock.now() - waits_since
            staleness += [
                step - 1 - trajectory.summary.policy_version for item in taken for trajectory in item.group.trajectories
            ]
            await asyncio.sleep(update_s)
            await sync_weights(run.engines, version=step)
    seconds = clock.now() - started_at
    await run.rollouts.aclose()
    return {
        "max_staleness": max_staleness,
        "trajectories": len(staleness),
        "run s": seconds,
        "per second": len(staleness) / seconds,
        "actor waits": waited_s / seconds,
        "staleness mean": sum(staleness) / len(staleness),
        "staleness max": max(staleness),
    }


async def sync_weights(engines: Sequence[SimulatedEngine], *, version: int) -> None:
    """Give all engines new weights at once, while they sample."""
    await asyncio.sleep(_WEIGHT_SYNC_S)
    for engine in engines:
        await engine.load_weights(_NO_WEIGHTS, version=version)


def main() -> int:
    """Play the synchronous run and two that are not, and print the table."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=8, help="updates of each run")
    options: argparse.Namespace = parser.parse_args()
    report.print_machine()
    alone = run_in_virtual_time(train(max_staleness=0, num_steps=_CALIBRATION_STEPS, update_s=0.0))
    update_s = _UPDATE_SHARE * alone["run s"] / _CALIBRATION_STEPS
    rows = [
        run_in_virtual_time(train(max_staleness=number, num_steps=options.steps, update_s=update_s))
        for number in (0, 1, 2)
    ]
    for row in rows:
        row["over synchronous"] = row["per second"] / rows[0]["per second"]
    report.print_table(f"{options.steps} steps with updates of {update_s:.1f} s", rows)
    report.write_json(options.json, {"update_s": update_s, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
