"""Tables for a person: the processes of a run, and how much it does at once."""

from rich.table import Table

from agentrl.cluster.placement.threads import num_cores
from agentrl.config.layout import Placement, layout, pool_size
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import RunConfig
from agentrl.run.stages import stages_of


def process_table(config: RunConfig, *, asks_judge: bool, trains: bool = True) -> Table:
    """Return the processes of each role, only the engines if nothing is trained, and of a judge if it is needed."""
    rollout = config.rollout
    placements = [placed for placed in layout(config) if trains or "rollout" in placed.components]
    extra = {name: pool_size(config.cluster.pools[role.pool]) for name, role in config.cluster.extra_roles.items()}
    num_workers = sum(placed.num_processes for placed in placements) + rollout.num_workers + sum(extra.values())
    title = f"processes ({num_cores()} cores here, {num_workers} Ray workers)"
    table = Table("role", "processes", "each", title=title)
    for placement in placements:
        table.add_row(placement.role, str(placement.num_processes), _each(config, placement, trains=trains))
    for name, number in extra.items():
        table.add_row(name, str(number), config.cluster.extra_roles[name].class_path)
    table.add_row("agent loop", str(rollout.num_workers), "tools, tokenizer and reward of its own")
    if asks_judge:
        table.add_row("judge", *_judges(config.judge))
    return table


def _each(config: RunConfig, placement: Placement, *, trains: bool) -> str:
    parts = [] if placement.pool is None else [f"pool {placement.pool}"]
    if trains and placement.role != "rollout":
        parts.append("FSDP rank")
    if "rollout" in placement.components:
        parts.append(f"engine {config.rollout.engine}")
    return "; ".join(parts)


def _judges(judge: JudgeSection) -> tuple[str, str]:
    if urls := judge.hosts:
        return "0", f"remote, {', '.join(urls)}"
    isolation = f"isolation {judge.min_isolation} or better"
    if judge.placement == "per_node":
        return "1 per Ray node", f"slots: {judge.num_slots or 'one per core and one'}, {isolation}"
    return "1", f"{judge.num_slots or num_cores() + 1} slots, {isolation}"


def concurrency_table(config: RunConfig) -> Table:
    """Return the trajectories, tokens and tool calls that are under way at once."""
    rollout, stages = config.rollout, stages_of(config)
    at_once = rollout.max_concurrent_trajectories * rollout.num_engines
    per_step = rollout.prompts_per_step * rollout.samples_per_prompt
    longest = max(stages, key=lambda stage: stage.config.rollout.max_response_tokens)
    kv_tokens = rollout.max_concurrent_trajectories * longest.config.max_trajectory_tokens
    which = f" (stage {longest.index + 1} of {len(stages)})" if config.stages else ""
    rows = {
        "trajectories of one step (refills come on top)": f"{per_step:,}",
        "trajectories at once": f"{at_once:,}",
        "waves per step": f"{per_step / at_once:.1f}",
        f"KV-cache tokens reserved per engine{which}": f"{kv_tokens:,}",
        "tool calls at once, at most": f"{at_once:,}",
        "longest that one trajectory may take": f"{rollout.trajectory_timeout_s:g} s",
    }
    table = Table("what", "number", title="concurrency budget")
    for row in rows.items():
        table.add_row(*row)
    return table
