"""GPUs that engines share with trained models, and the settings that such engines need."""

from agentrl.config.schema.run import RunConfig


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
