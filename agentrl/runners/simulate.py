"""Plays a step's rollout on engines that compute nothing: `python -m agentrl.runners.simulate config.yaml [key=value ...]`.

The manager, the agent loop, the tokenizer and the tools are the real ones; engines, tools and reward only take the time
that real ones would take, on a virtual clock. So thousands of trajectories take seconds, and a plan for a cluster can be tried
out before there is one.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from agentrl import clock
from agentrl.agent_loop.scheduling.manager import AgentLoopManager
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.simulation import SimulationConfig
from agentrl.config.validation.relations import Purpose
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError
from agentrl.run.plan import check_plugins
from agentrl.run.preflight.models.folders import check_model_path
from agentrl.run.prompt_sets import overlong_warnings, training_prompts
from agentrl.runners.command_line import make_parser, run_command
from agentrl.simulation.batch_model import BatchCounts
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.reward import SIMULATED_REWARD
from agentrl.simulation.tool import SIMULATED_TOOL
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Group, Prompt, TrajectorySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Result of a simulation; times in virtual seconds."""

    groups: list[Group]
    prompt_tokens: dict[str, int]
    """Length of each prompt, by its id."""
    makespan_s: float
    counts: BatchCounts
    """Counts of all engines together."""
    cpu_time_s: float
    """Real, of this process."""

    @property
    def summaries(self) -> list[TrajectorySummary]:
        """All trajectories."""
        return [trajectory.summary for group in self.groups for trajectory in group.trajectories]


class LocalWorker:
    """Handle of a worker in this process, with the interface of `WorkerHandle`."""

    def __init__(self, worker: AgentLoopWorker) -> None:
        self._worker = worker

    def __getattr__(self, method: str) -> Any:
        return getattr(self._worker, method)

    async def call_keeping_second(self, method: str, *args: Any) -> tuple[Any, Any]:
        """See `WorkerHandle.call_keeping_second`."""
        return await getattr(self._worker, method)(*args)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Started parts of a simulated run, before the first rollout."""

    engines: list[SimulatedEngine]
    workers: list[Any]
    rollouts: AgentLoopManager
    prompts: PromptDataset


async def start(loaded: LoadedConfig, *, assumed_kv_tokens: int | None = None) -> SimulatedRun:
    """Start simulated engines, and workers in this process.

    The manager takes the memory of an engine for `assumed_kv_tokens`; absent: what it is, 0: unbounded.

    Raises:
        ConfigError: the config is wrong, or names a tool or a reward that waits in real time.
    """
    config = cast(SimulationConfig, loaded.config)
    tools = check_plugins(loaded, asks_servers=False)
    _refuse_real_time(config, [tool.class_name for tool in tools])
    check_model_path(config.model.path)
    prompts = training_prompts(config)
    engines = [SimulatedEngine(config.model, config.simulated) for _ in range(config.rollout.num_engines)]
    fleet = EngineFleet(lambda index: cast(Any, engines[index]), num_engines=len(engines))
    await fleet.start()
    worker_config = WorkerConfig(
        model=config.model,
        rollout=config.rollout,
        reward=config.reward,
        tools=tuple(tools),
        run_seed=config.run.seed,
        run_dir="",
    )
    workers: list[Any] = [
        LocalWorker(AgentLoopWorker(worker_config, f"agent_loop {index}"))
        for index in range(config.rollout.num_workers)
    ]
    assumed = config.simulated.kv_tokens if assumed_kv_tokens is None else assumed_kv_tokens
    manager = AgentLoopManager(
        config.rollout,
        fleet,
        workers,
        max_prompt_tokens=config.data.max_prompt_tokens,
        kv_tokens=[assumed] * len(engines),
        reward_timeout_s=config.reward.timeout_s,
        max_wait_s=config.cluster.max_wait_s,
    )
    return SimulatedRun(engines=engines, workers=workers, rollouts=manager, prompts=prompts)


async def simulate(
    loaded: LoadedConfig, *, assumed_kv_tokens: int | None = None, num_steps_before: int = 0
) -> Simulation:
    """Roll out the prompts of one step, after `num_steps_before` others, from which admission learns but which are not counted.

    The other arguments and the errors are those of `start`.
    """
    run, rollout = await start(loaded, assumed_kv_tokens=assumed_kv_tokens), loaded.config.rollout

    async def roll_out(prompts: Sequence[Prompt], step: int) -> list[Group]:
        samples = rollout.samples_per_prompt
        return await run.rollouts.collect(prompts, step=step, samples_per_prompt=samples, on_finished=lambda _: None)

    for step in range(num_steps_before):
        await roll_out(run.prompts.take(rollout.prompts_per_step), step + 1)
    taken = run.prompts.take(rollout.prompts_per_step)
    overlong_warnings(overlong := await run.rollouts.check_prompts(taken), loaded.config.data)
    taken = [prompt for prompt in taken if prompt.prompt_id not in overlong]
    prompt_tokens = await run.workers[0].prompt_lengths(taken)
    before = _sum_counts(run.engines)
    started_at, started_cpu = clock.now(), time.process_time()
    groups = await roll_out(taken, num_steps_before + 1)
    makespan_s, cpu_time_s = clock.now() - started_at, time.process_time() - started_cpu
    await run.rollouts.aclose()
    return Simulation(
        groups=groups,
        prompt_tokens=prompt_tokens,
        makespan_s=makespan_s,
        counts=BatchCounts(**(_sum_counts(run.engines) - before)),
        cpu_time_s=cpu_time_s,
    )


def _sum_counts(engines: Sequence[SimulatedEngine]) -> Counter[str]:
    return sum((Counter(asdict(engine.counts)) for engine in engines), Counter[str]())


def _refuse_real_time(config: RunConfig, tools: list[str]) -> None:
    wrong = [f"tool_config_path: the tool `{name}`" for name in tools if name != SIMULATED_TOOL]
    wrong += [
        f"reward: `{scorer.function or scorer.class_name}`"
        for scorer in config.reward.scorers
        if scorer.class_name != SIMULATED_REWARD
    ]
    if wrong:
        raise ConfigError(
            f"{'; '.join(wrong)}: waits in real time, and a simulation has a clock of its own. Take "
            f"`{SIMULATED_TOOL}` and `{SIMULATED_REWARD}`, as configs/simulate.yaml does"
        )


def report(simulation: Simulation, config: RunConfig) -> Table:
    """Return the figures for a person."""
    summaries, seconds = simulation.summaries, simulation.makespan_s
    num_turns, engines = sum(summary.num_turns for summary in summaries), config.rollout.num_engines
    counts = simulation.counts
    computed, asked = counts.prefilled + counts.generated, counts.prefilled + counts.cached
    total_s = sum(summary.wall_time_s for summary in summaries)
    tool_s = sum(summary.tool_time_s for summary in summaries)
    rows = {
        "trajectories": f"{len(summaries):,} ({num_turns:,} turns)",
        "time for all of them": f"{seconds:,.1f} s",
        "longest trajectory": f"{max(summary.wall_time_s for summary in summaries):,.1f} s",
        "trajectories per second": f"{len(summaries) / seconds:,.2f}",
        "sampled tokens per second and engine": f"{counts.generated / seconds / engines:,.0f}",
        "prompt tokens found in the cache": f"{counts.cached / max(1, asked):.1%}",
        "tokens computed again": f"{counts.recomputed / max(1, computed):.2%}",
        "share of a trajectory's time in tools": f"{tool_s / (total_s or 1.0):.1%}",
        "CPU time of the loop per turn": f"{1000 * simulation.cpu_time_s / max(1, num_turns):.2f} ms",
    }
    table = Table(title=f"{engines} engines, admission by {config.rollout.admission}")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for row in rows.items():
        table.add_row(*row)
    return table


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser("simulate", "Play one step's rollout on simulated engines, in virtual time.")
    arguments = parser.parse_intermixed_args()

    async def command() -> None:
        loaded = load_run_config(arguments.config, arguments.overrides, purpose=Purpose.SIMULATION)
        Console().print(report(await simulate(loaded), loaded.config))

    return run_command(command, when_stopped="nothing is left of it", run=run_in_virtual_time)


if __name__ == "__main__":
    sys.exit(main())
