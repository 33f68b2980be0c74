"""Answers, before anything is trained: would this config run, and what would it start?"""

from dataclasses import replace
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from agentrl.cluster.role_groups import num_cores, threads_per_rank
from agentrl.config.layout import Placement, layout, pool_size
from agentrl.config.load import LoadedConfig
from agentrl.config.schema import JudgeSection, RewardSection, RunConfig
from agentrl.judge.connection import run_urls
from agentrl.rewards.loader import build_reward
from agentrl.runners.judges import judge_for
from agentrl.runners.memory_check import check_memory
from agentrl.runners.model_folders import check_models, check_weights
from agentrl.runners.run import check_plugins, check_room, held_out_prompts, training_prompts, training_warnings
from agentrl.runners.stages import stages_of
from agentrl.runners.stores import check_url, open_store
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.worker_tool import WORKER_TOOL


class CheckLevel(StrEnum):
    """How much is tried."""

    STATIC = "static"
    """The config and the code that it names: no network, no model, no data, no GPU."""
    FULL = "full"
    """Also reads the data, starts or asks the judge, and builds every tool and the reward."""


async def check(loaded: LoadedConfig, level: CheckLevel) -> None:
    """Check a config and print the processes and the concurrency it leads to.

    Raises:
        ConfigError, ToolError: what is wrong, where, and the way out.
    """
    config = loaded.config
    tools, reward = check_plugins(loaded)
    if config.checkpoint.dir is not None:
        reach = check_url if level is CheckLevel.STATIC else open_store
        reach(config.checkpoint.dir, key="checkpoint.dir")
    console = Console()
    for warning in training_warnings(config):
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)
    if level is CheckLevel.FULL:
        check_models(config)
        check_weights(config)
        check_room(config)
        stages = stages_of(config)
        for line in dict.fromkeys(line for stage in stages for line in check_memory(stage.config)):
            console.print(line, soft_wrap=True)
        data = [training_prompts(stage.config, file_names=stage.file_names) for stage in stages]
        num_prompts = " + ".join(str(len(prompts)) for prompts in data)
        console.print(f"data: {num_prompts} training prompts, {len(held_out_prompts(config))} for validation")
        names = await _build_everything(tools, reward, config)
        console.print(f"tools: {', '.join(names) or 'none'}; all of them built and answered")
    console.print(_processes(config))
    console.print(_concurrency(config))
    console.print(f"{loaded.path.name}: ok ({level} check)")


async def _build_everything(tools: list[ToolConfig], reward: RewardSection, config: RunConfig) -> list[str]:
    # Without Ray there are no nodes; one judge here shows as much about the tools.
    async with judge_for(tools, reward, replace(config.judge, placement="driver")) as judged:
        # Workers of an extra role come with Ray; what their tools ask of them has been looked at.
        here = [tool for tool in judged.tools if tool.class_name != WORKER_TOOL]
        executor = ToolExecutor(
            build_tools(here),
            timeout_s=config.rollout.tool_timeout_s,
            max_calls_per_turn=config.rollout.max_tool_calls_per_turn,
        )
        built = build_reward(judged.reward)
        await executor.start()
        try:
            await built.start()
            await built.aclose()
        finally:
            await executor.aclose()
        return [schema.name for schema in executor.schemas]


def _processes(config: RunConfig) -> Table:
    rollout, placements = config.rollout, layout(config)
    extra = {name: pool_size(config.cluster.pools[one.pool]) for name, one in config.cluster.extra_roles.items()}
    num_workers = sum(one.num_processes for one in placements) + rollout.num_workers + sum(extra.values())
    table = Table(title=f"processes ({num_cores()} cores here, {num_workers} Ray workers)")
    for column in ("role", "processes", "each"):
        table.add_column(column)
    for placement in placements:
        table.add_row(placement.role, str(placement.num_processes), _each(config, placement))
    for name, number in extra.items():
        table.add_row(name, str(number), config.cluster.extra_roles[name].class_path)
    table.add_row("agent loop", str(rollout.num_workers), "tools, tokenizer and reward of its own")
    table.add_row("judge", *_judges(config.judge))
    return table


def _each(config: RunConfig, placement: Placement) -> str:
    """Return what each process of a role is."""
    parts = [] if placement.pool is None else [f"pool {placement.pool}"]
    if placement.role != "rollout":
        parts.append(f"FSDP rank, {threads_per_rank(config)} threads without a GPU")
    if "rollout" in placement.components:
        threads = config.rollout.num_threads_per_engine or num_cores()
        parts.append(f"engine {config.rollout.engine}, {threads} threads without a GPU")
    return "; ".join(parts)


def _judges(judge: JudgeSection) -> tuple[str, str]:
    """Return how many judges the run starts, and what each is."""
    if urls := run_urls(judge):
        return "0", f"remote, {', '.join(urls)}"
    isolation = f"isolation {judge.min_isolation} or better"
    if judge.placement == "per_node":
        return "1 per Ray node", f"slots: {judge.num_slots or 'one per core and one'}, {isolation}"
    return "1", f"{judge.num_slots or num_cores() + 1} slots, {isolation}"


def _concurrency(config: RunConfig) -> Table:
    rollout = config.rollout
    at_once = rollout.max_concurrent_trajectories * rollout.num_engines
    per_step = rollout.prompts_per_step * rollout.samples_per_prompt
    stages = stages_of(config)
    longest = max(stages, key=lambda stage: stage.config.rollout.max_response_tokens)
    max_tokens = rollout.max_prompt_tokens + longest.config.rollout.max_response_tokens
    kv_tokens = rollout.max_concurrent_trajectories * max_tokens
    which = f" (stage {longest.index + 1} of {len(stages)})" if config.stages else ""
    table = Table(title="concurrency budget")
    for column in ("what", "number"):
        table.add_column(column)
    table.add_row("trajectories of one step (refills come on top)", f"{per_step:,}")
    table.add_row("trajectories at once", f"{at_once:,}")
    table.add_row("waves per step", f"{per_step / at_once:.1f}")
    table.add_row(f"KV-cache tokens reserved per engine{which}", f"{kv_tokens:,}")
    table.add_row("tool calls at once, at most", f"{at_once:,}")
    table.add_row("longest that one trajectory may take", f"{rollout.trajectory_timeout_s:g} s")
    return table
