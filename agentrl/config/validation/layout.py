"""Checks of the section `cluster`: pools, roles, the weight transport between them, and GPUs that they share."""

from collections import Counter
from collections.abc import Iterator

from agentrl.config.layout import COMPONENTS, Placement, gpu_shares, layout, needed_components, pool_users
from agentrl.config.schema.run import RunConfig

_OWN_PROCESSES = ("engine", "agent_loop", "judge")
"""Further names of processes, not available to extra roles."""


def layout_problems(config: RunConfig) -> list[str]:
    """Return the problems, one line each."""
    problems = [*_pool_problems(config)]
    if config.cluster.roles:
        problems += _role_problems(config)
        problems += [] if problems else [*_size_problems(config), *_gpu_problems(config)]
    if problems:
        return problems
    placements = layout(config)
    problems = [problem for placement in placements for problem in _rank_problems(placement, config)]
    return [*problems, *_sync_problems(config, placements)]


def _pool_problems(config: RunConfig) -> Iterator[str]:
    cluster = config.cluster
    for name, section in cluster.pools.items():
        if bool(section.processes_per_node) == bool(section.num_processes):
            yield (
                f"`cluster.pools.{name}` needs either `processes_per_node` or `num_processes`, and has "
                f"{'both' if section.num_processes else 'neither'}"
            )
        if not pool_users(config, name):
            yield f"`cluster.pools.{name}` is used by no role; name it in `cluster.roles`, or leave it out"
    places = {f"cluster.roles.{role}": pool for role, pool in cluster.roles.items()}
    places |= {f"cluster.extra_roles.{role}.pool": extra.pool for role, extra in cluster.extra_roles.items()}
    known = ", ".join(f"`{name}`" for name in cluster.pools) or "none"
    for key, pool in places.items():
        if pool not in cluster.pools:
            yield f"`{key}` is `{pool}`, which is none of `cluster.pools` ({known})"
    for role in cluster.extra_roles:
        if role in _OWN_PROCESSES or set(role.split("_")) <= set(COMPONENTS):
            yield (
                f"`cluster.extra_roles` has a role named `{role}`, which the run itself uses; name it after its task, as "
                "`image_edit`"
            )


def _shared_by(users: list[str]) -> str:
    return f", which {len(users)} roles share ({', '.join(f'`{user}`' for user in users)})" if len(users) > 1 else ""


def _role_problems(config: RunConfig) -> Iterator[str]:
    roles, needed = config.cluster.roles, needed_components(config)
    counts = Counter(name for role in roles for name in role.split("_"))
    for name, count in counts.items():
        if name not in COMPONENTS:
            yield (
                f"`cluster.roles` names `{name}`; a role is made of {', '.join(COMPONENTS)}, joined by `_`. Workers of another "
                "kind are `cluster.extra_roles`"
            )
        elif count > 1:
            yield f"`cluster.roles` places `{name}` {count} times; once is enough"
        elif name not in needed:
            yield f"`cluster.roles` places `{name}`, which `algorithm` and `reward.model` do not ask for; leave it out"
    for name in needed:
        if name not in counts:
            example = "actor_rollout" if name == "actor" else f"actor_{name}"
            yield f"`cluster.roles` places no `{name}`; add it, alone or in a role such as `{example}`"
    for role in roles:
        if "rollout" in role.split("_") and role != "rollout" and config.rollout.engine != "transformers":
            yield (
                f"`cluster.roles.{role}`: only the engine `transformers` runs in the actor's process, and `rollout.engine` is "
                f"`{config.rollout.engine}`; give `rollout` a role of its own, in the same pool to share GPUs"
            )


def _size_problems(config: RunConfig) -> Iterator[str]:
    """Yield contradictions between the pools and the numbers of ranks and engines."""
    numbers = {"actor": config.actor.num_workers, "rollout": config.rollout.num_engines}
    for placement in layout(config):
        for component in [name for name in placement.components if name in numbers]:
            key = "actor.num_workers" if component == "actor" else "rollout.num_engines"
            if numbers[component] not in (1, placement.num_processes):
                yield (
                    f"`{key}` is {numbers[component]}, and `cluster.pools.{placement.pool}` has {placement.num_processes} "
                    f"processes for it; leave `{key}` out"
                )


def _gpu_problems(config: RunConfig) -> Iterator[str]:
    """Yield engines that are split over more GPUs than their process has."""
    rollout, pool = config.rollout, config.cluster.roles.get("rollout")
    if pool is None or rollout.engine != "vllm":
        return
    num_gpus, users = config.cluster.pools[pool].num_gpus, pool_users(config, pool)
    wanted = rollout.tensor_parallel_size * rollout.data_parallel_size
    gpus_per_process = gpu_shares(num_gpus, len(users))[users.index("cluster.roles.rollout")]
    if 0 < gpus_per_process < wanted and wanted > 1:  # one GPU may be shared
        yield (
            f"`rollout.tensor_parallel_size` ({rollout.tensor_parallel_size}) times `rollout.data_parallel_size` "
            f"({rollout.data_parallel_size}) need {wanted} GPUs for each engine, and `cluster.pools.{pool}.num_gpus` gives "
            f"each process {num_gpus:g}{_shared_by(users)}; set it to {wanted * len(users)}, with fewer processes, or give "
            "`rollout` a pool of its own"
        )


def _rank_problems(placement: Placement, config: RunConfig) -> Iterator[str]:
    """Yield ranks that cannot be divided into groups, or would have no share of a mini-batch."""
    actor, selection, rollout = config.actor, config.algorithm.selection, config.rollout
    if placement.role == "rollout":
        return
    for key, size in {
        "actor.sequence_parallel_size": actor.sequence_parallel_size,
        "actor.shard_size": actor.shard_size,
    }.items():
        if size and placement.num_processes % size:
            place = f"cluster.pools.{placement.pool}" if placement.pool else "actor.num_workers"
            yield (
                f"`{key}` is {size}, which does not divide the {placement.num_processes} ranks of `{placement.role}` "
                f"(`{place}`); change one of them"
            )
            return
    kept = selection.num_kept(rollout.samples_per_prompt)
    size, num_kept_by = actor.sequence_parallel_size, "algorithm.selection.keep"
    if selection.method == "all":
        num_kept_by = "rollout.samples_per_prompt"
    ranks = "ranks" if size == 1 else f"groups of {size} ranks (`actor.sequence_parallel_size`)"
    groups, shares = rollout.prompts_per_step // actor.mini_batches_per_step, placement.num_processes // size
    trained = [name for name in placement.components if name in ("actor", "critic")]
    if trained and 0 < groups * kept < shares:
        yield (
            f"a mini-batch has {groups} groups (`rollout.prompts_per_step` over `actor.mini_batches_per_step`) of "
            f"{kept} trajectories (`{num_kept_by}`), fewer than the {trained[0]}'s {shares} {ranks}, so some would be idle; "
            "make it larger, or use fewer ranks"
        )


def _sync_problems(config: RunConfig, placements: list[Placement]) -> Iterator[str]:
    """Yield contradictions between the weight sync and the places of actor and engines."""
    cluster, staleness = config.cluster, config.rollout.max_staleness
    if cluster.colocated and staleness > 0:
        yield (
            f"`cluster.colocated` lets engines sleep while the actor trains, but with `rollout.max_staleness` {staleness} they "
            "run meanwhile; set that to 0, or leave `cluster.colocated` out"
        )
    if any({"actor", "rollout"} <= set(placement.components) for placement in placements):
        if cluster.weight_transport != "shared_memory":
            yield (
                f"`cluster.weight_transport` is `{cluster.weight_transport}`, which is for engines in separate processes, but "
                "`cluster.roles` puts them into the actor's processes; leave it out"
            )
    elif cluster.roles:
        actor = next(pool for role, pool in cluster.roles.items() if "actor" in role.split("_"))
        engines = cluster.roles["rollout"]
        gpus = cluster.pools[actor].num_gpus, cluster.pools[engines].num_gpus
        # Ray may put parts of a GPU together, whatever pools they belong to.
        shared = True if actor == engines else None if max(gpus) < 1 else False
        yield from transport_problems(config, actor_has_gpu=gpus[0] > 0, engine_has_gpu=gpus[1] > 0, shared=shared)


def transport_problems(
    config: RunConfig, *, actor_has_gpu: bool, engine_has_gpu: bool, shared: bool | None
) -> list[str]:
    """Return contradictions between the weight transport and the devices of actor and engines.

    Args:
        config: config with `cluster.weight_transport`.
        actor_has_gpu: whether each rank has a GPU, or a part of one.
        engine_has_gpu: whether each engine has a GPU, or a part of one.
        shared: whether actor and engines share GPUs; None: unknown.
    """
    both = actor_has_gpu and engine_has_gpu
    match config.cluster.weight_transport:
        case "cuda_ipc" if not both or shared is False:
            reason = "each has others; take `broadcast`" if both else "not both have GPUs; take `shared_memory`"
            return [
                "`cluster.weight_transport` is `cuda_ipc`, which is for engines on the actor's own GPUs, in the same pool, and "
                f"{reason}"
            ]
        case "broadcast" if (both and shared) or actor_has_gpu != engine_has_gpu:
            reason = "they share them; take `cuda_ipc`" if both else "one side alone has GPUs; take `shared_memory`"
            return [
                "`cluster.weight_transport` is `broadcast`, which joins actor and engines with GPUs of their own, or without "
                f"any, and {reason}"
            ]
    return []


def engines_share_gpus(config: RunConfig, *, gpus_outside: float = 0.0) -> bool:
    """Return whether processes with models and engines are, or may be, on the same GPUs.

    Args:
        config: a checked config.
        gpus_outside: GPUs of each process outside of pools; below 1 if all share the only GPU.
    """
    cluster = config.cluster
    if not cluster.roles:
        return 0 < gpus_outside < 1
    engines = next(pool for role, pool in cluster.roles.items() if "rollout" in role.split("_"))
    with_models = {pool for role, pool in cluster.roles.items() if role != "rollout"}
    # Ray may put parts of a GPU together, whatever pools they belong to.
    parts = 0 < cluster.pools[engines].num_gpus < 1
    return cluster.pools[engines].num_gpus > 0 and (
        engines in with_models or (parts and any(0 < cluster.pools[pool].num_gpus < 1 for pool in with_models))
    )


def kv_memory_problems(config: RunConfig, *, gpus_outside: float = 0.0) -> list[str]:
    """Return a problem if vLLM would take the models' memory: without a size for its KV cache it takes all free memory."""
    rollout = config.rollout
    if rollout.engine != "vllm" or rollout.kv_memory_gb or not engines_share_gpus(config, gpus_outside=gpus_outside):
        return []
    return [
        "`rollout.kv_memory_gb` is not set, and vLLM shares GPUs with the models, so its KV cache would take the memory of "
        "gradients and optimiser; set it to 4, for example, or to more if `--check` finds room"
    ]
