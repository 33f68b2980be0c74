"""Assignment of roles to processes: `cluster.roles` and `cluster.pools`, or the default layout without them."""

from collections import Counter
from dataclasses import dataclass

from agentrl.config.schema.cluster import PoolSection
from agentrl.config.schema.run import RunConfig

COMPONENTS = ("actor", "rollout", "ref", "critic", "reward")
"""Components that form roles, joined by `_`."""
_OWN_PROCESSES = ("engine", "agent_loop", "judge")
"""Further names of processes, not available to extra roles."""
_REASONS_FOR_NONE = {
    "ref": "`algorithm.kl_coefficient` is 0",
    "critic": "`algorithm.advantage` uses no values",
    "reward": "`reward.model.path` is absent",
}
_RAY_STEP = 0.0001
"""Smallest part of a CPU or GPU that Ray accepts."""
_ROUNDING = 1e-6
"""Tolerance for a rounded fraction, such as 0.333333."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The processes of one role. Example: `Placement(role="actor_ref", pool="train", num_processes=2)`."""

    role: str
    num_processes: int
    pool: str | None = None
    """Name of the pool; None: every process takes a core, and a GPU if there are any."""

    @property
    def components(self) -> tuple[str, ...]:
        """Components that each process holds."""
        return tuple(self.role.split("_"))


def needed_components(config: RunConfig) -> list[str]:
    """Return the components that the algorithm needs."""
    wanted = {"ref": config.has_reference_model, "critic": config.has_critic, "reward": config.has_reward_model}
    return ["actor", "rollout", *(component for component, is_wanted in wanted.items() if is_wanted)]


def pool_size(section: PoolSection) -> int:
    """Return the number of processes of a pool."""
    return sum(section.processes_per_node) or section.num_processes


def pool_users(config: RunConfig, pool: str) -> list[str]:
    """Return the keys of the roles that share a pool, in the order of their start: engines last."""
    placed = [f"cluster.roles.{role}" for role in config.cluster.roles if "rollout" not in role.split("_")]
    with_engines = [f"cluster.roles.{role}" for role in config.cluster.roles if "rollout" in role.split("_")]
    extra = [f"cluster.extra_roles.{role}" for role in config.cluster.extra_roles]
    pool_of = {f"cluster.roles.{role}": name for role, name in config.cluster.roles.items()}
    pool_of |= {f"cluster.extra_roles.{role}": section.pool for role, section in config.cluster.extra_roles.items()}
    return [key for key in (*placed, *extra, *with_engines) if pool_of[key] == pool]


def gpu_shares(num_gpus: float, num_roles: int) -> list[float]:
    """Return the GPUs per process of each role that shares a pool, in the order of their start.

    Args:
        num_gpus: GPUs of each process of the pool (`PoolSection.num_gpus`).
        num_roles: number of roles that share the pool.
    """
    if num_gpus != 1:
        return [num_gpus / num_roles] * num_roles
    # Ray fills a GPU before it uses the next, so equal shares would put several ranks of a role on one GPU, which NCCL refuses.
    # Each share is more than half of what the earlier roles left of a GPU, so a second rank of the role does not fit.
    thousandths, left = [], 1000
    for _ in range(num_roles - 1):
        thousandths.append(left // 2 + 1)
        left -= thousandths[-1]
    return [share / 1000 for share in (*thousandths, left)]


def layout(config: RunConfig) -> list[Placement]:
    """Return the placement of every role of a checked config; engines come last, since they use the memory that is left."""
    if not config.cluster.roles:
        with_actor = [name for name in needed_components(config) if name != "rollout"]
        return [
            Placement(role="_".join(with_actor), num_processes=config.actor.num_workers),
            Placement(role="rollout", num_processes=config.rollout.num_engines),
        ]
    placed = [
        Placement(role=role, num_processes=pool_size(config.cluster.pools[pool]), pool=pool)
        for role, pool in config.cluster.roles.items()
    ]
    return sorted(placed, key=lambda placement: "rollout" in placement.components)


def processes_per_node(config: RunConfig, component: str) -> int:
    """Return the largest number of processes with a component (`actor`, `rollout`) that share the cores of a machine.

    Without `processes_per_node` these are all of them.
    """
    placement = next(item for item in layout(config) if component in item.components)
    per_node = [] if placement.pool is None else config.cluster.pools[placement.pool].processes_per_node
    return max(per_node, default=placement.num_processes)


def with_sizes_of_pools(config: RunConfig) -> RunConfig:
    """Return a checked config with the numbers of ranks and engines of their pools."""
    for placement in layout(config):
        if "actor" in placement.components:
            actor = config.actor.model_copy(update={"num_workers": placement.num_processes})
            config = config.model_copy(update={"actor": actor})
        if "rollout" in placement.components:
            rollout = config.rollout.model_copy(update={"num_engines": placement.num_processes})
            config = config.model_copy(update={"rollout": rollout})
    return config


def layout_problems(config: RunConfig) -> list[str]:
    """Return the problems of the section `cluster`, one line each."""
    problems = [*_pool_problems(config), *_name_problems(config)]
    if config.cluster.roles:
        problems += _role_problems(config)
        problems += [] if problems else [*_size_problems(config), *_gpu_problems(config)]
    problems = problems or _sequence_problems(config)
    return problems or [
        *_share_problems(config),
        *_shard_problems(config),
        *_sync_problems(config),
        *_unchecked_problems(config),
    ]


def _pool_problems(config: RunConfig) -> list[str]:
    cluster, problems = config.cluster, []
    for name, section in cluster.pools.items():
        key = f"cluster.pools.{name}"
        if bool(section.processes_per_node) == bool(section.num_processes):
            problems.append(
                f"`{key}` needs either `processes_per_node` or `num_processes`, and has "
                f"{'both' if section.num_processes else 'neither'}"
            )
    users = {f"cluster.roles.{role}": pool for role, pool in cluster.roles.items()}
    users |= {f"cluster.extra_roles.{role}.pool": extra.pool for role, extra in cluster.extra_roles.items()}
    known = ", ".join(f"`{name}`" for name in cluster.pools) or "none"
    problems += [
        f"`{key}` is `{pool}`, which is none of `cluster.pools` ({known})"
        for key, pool in users.items()
        if pool not in cluster.pools
    ]
    idle = [name for name in cluster.pools if name not in users.values()]
    problems += [] if problems else [problem for name in cluster.pools for problem in _amount_problems(name, config)]
    return problems + [
        f"`cluster.pools.{name}` is used by no role; name it in `cluster.roles`, or leave it out" for name in idle
    ]


def _name_problems(config: RunConfig) -> list[str]:
    """Return extra roles with an empty name or one that is in use."""
    return [
        f"`cluster.extra_roles` has a role named `{role}`, which {'the run itself uses' if role.strip() else 'is empty'}; "
        "name it after its task, such as `image_edit`"
        for role in config.cluster.extra_roles
        if not role.strip() or role in _OWN_PROCESSES or set(role.split("_")) <= set(COMPONENTS)
    ]


def _amount_problems(name: str, config: RunConfig) -> list[str]:
    """Return amounts of CPUs and GPUs that Ray cannot give to the roles of a pool."""
    section, key, users = config.cluster.pools[name], f"cluster.pools.{name}", pool_users(config, name)
    num_roles, num_gpus, most = max(1, len(users)), section.num_gpus, max(section.processes_per_node, default=1)
    of_each = f", which {num_roles} roles share ({', '.join(f'`{user}`' for user in users)})" if num_roles > 1 else ""
    problems = [
        f"`{key}.{kind}` is {amount:g}{of_each}, and Ray counts in steps of {_RAY_STEP:g}; set it to 0, or to "
        f"{_RAY_STEP * num_roles:g} at least"
        for kind, amount in (("num_cpus", section.num_cpus), ("num_gpus", num_gpus))
        if 0 < amount < _RAY_STEP * num_roles
    ]
    if num_gpus > 1 and num_gpus % num_roles:
        whole = int(num_gpus // num_roles) * num_roles or 1
        problems.append(
            f"`{key}.num_gpus` is {num_gpus:g}{of_each}, and a process takes a whole number of GPUs, or a part of one; set it "
            f"to {whole} or {(int(num_gpus // num_roles) + 1) * num_roles}, or give the roles pools of their own"
        )
    if 0 < num_gpus < 1 and num_gpus * most > 1 and abs(round(1 / num_gpus) * num_gpus - 1) > _ROUNDING:
        problems.append(
            f"`{key}.num_gpus` is {num_gpus:g}, and {most} such parts on a node (`processes_per_node`) do not fill whole GPUs; "
            "set it to 0.5, 0.25 or another part that does, or to 1"
        )
    return problems


def _role_problems(config: RunConfig) -> list[str]:
    roles = config.cluster.roles
    counts = Counter(name for role in roles for name in role.split("_"))
    unknown = [name for name in counts if name not in COMPONENTS]
    if unknown:
        return [
            f"`cluster.roles` names `{name}`; a role is made of {', '.join(COMPONENTS)}, joined by `_`. Workers of another "
            "kind are `cluster.extra_roles`"
            for name in unknown
        ]
    needed = needed_components(config)
    problems = [
        f"`cluster.roles` places `{name}` {count} times; once is enough" for name, count in counts.items() if count > 1
    ]
    problems += [
        f"`cluster.roles` places no `{name}`; add it, alone or in a role such as "
        f"`{'actor_rollout' if name == 'actor' else f'actor_{name}'}`"
        for name in needed
        if name not in counts
    ]
    reasons = _REASONS_FOR_NONE
    if config.algorithm.kl_coefficient > 0:
        reasons = reasons | {"ref": "the base model of `actor.lora` is the reference"}
    problems += [
        f"`cluster.roles` places `{name}`, but {reason}, so it would not be used; set the one, or leave out the other"
        for name, reason in reasons.items()
        if name in counts and name not in needed
    ]
    together = next((role for role in roles if "rollout" in role.split("_") and role != "rollout"), None)
    if together and config.rollout.engine != "transformers":
        problems.append(
            f"`cluster.roles.{together}`: only the engine `transformers` runs in the actor's process, and `rollout.engine` is "
            f"`{config.rollout.engine}`; give `rollout` a role of its own, in the same pool to share GPUs"
        )
    return problems


def _size_problems(config: RunConfig) -> list[str]:
    """Return contradictions between the pools and the numbers of ranks and engines."""
    problems = []
    for placement in layout(config):
        for component, key, number in (
            ("actor", "actor.num_workers", config.actor.num_workers),
            ("rollout", "rollout.num_engines", config.rollout.num_engines),
        ):
            if component in placement.components and number not in (1, placement.num_processes):
                problems.append(
                    f"`{key}` is {number}, and `cluster.pools.{placement.pool}` has {placement.num_processes} processes for "
                    f"it; leave `{key}` out"
                )
    return problems


def _gpu_problems(config: RunConfig) -> list[str]:
    """Return engines that are split over more GPUs than their process has."""
    rollout, pool = config.rollout, config.cluster.roles.get("rollout")
    if pool is None or rollout.engine != "vllm":
        return []
    section, users = config.cluster.pools[pool], pool_users(config, pool)
    wanted = rollout.tensor_parallel_size * rollout.data_parallel_size
    gpus_per_process = gpu_shares(section.num_gpus, len(users))[users.index("cluster.roles.rollout")]
    if gpus_per_process == 0 or wanted == 1 or gpus_per_process >= wanted:  # one GPU may be shared
        return []
    sharing = (
        f" and {len(users)} roles share that ({', '.join(f'`{user}`' for user in users)})" if len(users) > 1 else ""
    )
    return [
        f"`rollout.tensor_parallel_size` ({rollout.tensor_parallel_size}) times `rollout.data_parallel_size` "
        f"({rollout.data_parallel_size}) need {wanted} GPUs for each engine, and `cluster.pools.{pool}.num_gpus` gives each "
        f"process {section.num_gpus:g}{sharing}; set it to {wanted * len(users)}, with fewer processes"
        f"{', or give `rollout` a pool of its own' if sharing else ''}"
    ]


def _sync_problems(config: RunConfig) -> list[str]:
    """Return contradictions between the weight sync and the places of actor and engines."""
    cluster, staleness, problems = config.cluster, config.rollout.max_staleness, []
    if cluster.colocated and staleness > 0:
        problems.append(
            f"`cluster.colocated` lets engines sleep while the actor trains, but with `rollout.max_staleness` {staleness} they "
            "run meanwhile; set that to 0, or leave `cluster.colocated` out"
        )
    live_together = any({"actor", "rollout"} <= set(placement.components) for placement in layout(config))
    if live_together and cluster.weight_transport != "shared_memory":
        problems.append(
            f"`cluster.weight_transport` is `{cluster.weight_transport}`, which is for engines in separate processes, but "
            "`cluster.roles` puts them into the actor's processes; leave it out"
        )
    elif cluster.roles:
        actor, engines = (_pool_of(component, config) for component in ("actor", "rollout"))
        gpus = cluster.pools[actor].num_gpus, cluster.pools[engines].num_gpus
        # Ray may put parts of a GPU together, whatever pools they belong to.
        shared = True if actor == engines else None if max(gpus) < 1 else False
        engines_alone = [role for role, pool in cluster.roles.items() if pool == engines] == ["rollout"]
        if cluster.colocated and engines_alone and shared is False and min(gpus) > 0:
            problems.append(
                "`cluster.colocated` lets engines sleep while models train or score, but in `cluster.roles` they are alone on "
                f"the GPUs of `{engines}`; put other roles into that pool, or leave it out"
            )
        problems += transport_problems(config, actor_has_gpu=gpus[0] > 0, engine_has_gpu=gpus[1] > 0, shared=shared)
    return problems


def _unchecked_problems(config: RunConfig) -> list[str]:
    """Return why `cluster.check_weights` would have no effect."""
    cluster = config.cluster
    together = next((item for item in layout(config) if {"actor", "rollout"} <= set(item.components)), None)
    if cluster.weight_transport != "shared_memory":
        other = f"`cluster.weight_transport` is `{cluster.weight_transport}`"
    elif together is not None and together.num_processes == 1:
        other = f"`cluster.roles.{together.role}` is a single process, without a transfer"
    else:
        return []
    if not cluster.check_weights:
        return []
    return [f"`cluster.check_weights` is for weights in shared memory, and {other}; leave it out"]


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


def _pool_of(component: str, config: RunConfig) -> str:
    return next(pool for role, pool in config.cluster.roles.items() if component in role.split("_"))


def _sequence_problems(config: RunConfig) -> list[str]:
    """Return roles whose ranks cannot be divided into sequence-parallel groups."""
    size = config.actor.sequence_parallel_size
    return [
        f"`actor.sequence_parallel_size` is {size}, which does not divide the {placement.num_processes} ranks of "
        f"`{placement.role}` (`{f'cluster.pools.{placement.pool}' if placement.pool else 'actor.num_workers'}`); change one of "
        "them"
        for placement in layout(config)
        if placement.role != "rollout" and size >= 1 and placement.num_processes % size
    ]


def _share_problems(config: RunConfig) -> list[str]:
    """Return mini-batches that are too small to give every rank a share."""
    selection, rollout, problems = config.algorithm.selection, config.rollout, []
    kept = selection.num_kept(rollout.samples_per_prompt)
    key = "algorithm.selection.keep" if selection.method == "resample_on_correct" else "rollout.samples_per_prompt"
    mini_batches = {"actor": config.actor.mini_batches_per_step, "critic": config.critic.mini_batches_per_step}
    size = config.actor.sequence_parallel_size
    ranks = "ranks" if size == 1 else f"groups of {size} ranks (`actor.sequence_parallel_size`)"
    for placement in layout(config):
        for component in (name for name in placement.components if name in mini_batches):
            shares = placement.num_processes // max(1, size)
            groups = rollout.prompts_per_step // max(1, mini_batches[component])
            if groups >= 1 and groups * kept < shares:
                problems.append(
                    f"a mini-batch has {groups} groups (`rollout.prompts_per_step` over `{component}.mini_batches_per_step`) "
                    f"of {kept} trajectories (`{key}`), fewer than the {component}'s {shares} {ranks}, so some would be idle; "
                    "make it larger, or use fewer ranks"
                )
    return problems


def _shard_problems(config: RunConfig) -> list[str]:
    """Return roles whose ranks cannot be divided into groups of `actor.shard_size`."""
    size = config.actor.shard_size
    return [
        f"`actor.shard_size` is {size}, which does not divide the {placement.num_processes} ranks of the role "
        f"`{placement.role}`; take a divisor, or 0"
        for placement in layout(config)
        if size > 0 and placement.role != "rollout" and placement.num_processes % size
    ]
