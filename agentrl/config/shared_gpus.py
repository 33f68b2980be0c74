"""GPUs that engines share with the models, and what such engines must be told."""

from agentrl.config.schema import RunConfig


def engines_share_gpus(config: RunConfig, *, gpus_outside: float = 0.0) -> bool:
    """Return whether processes with models and engines are on the same GPUs, or may be.

    Args:
        config: a checked one.
        gpus_outside: of each process outside of pools; a part of one where all share the only GPU.
    """
    cluster = config.cluster
    if not cluster.roles:
        return 0 < gpus_outside < 1
    engines = next(pool for role, pool in cluster.roles.items() if "rollout" in role.split("_"))
    with_models = {pool for role, pool in cluster.roles.items() if role != "rollout"}
    parts = 0 < cluster.pools[engines].num_gpus < 1  # Ray may put parts of a GPU together, whichever pools they are of
    return cluster.pools[engines].num_gpus > 0 and (
        engines in with_models or (parts and any(0 < cluster.pools[pool].num_gpus < 1 for pool in with_models))
    )


def kv_memory_problems(config: RunConfig, *, gpus_outside: float = 0.0) -> list[str]:
    """Return why vLLM would take memory that the models need later: without a size for its cache it takes what is free."""
    rollout = config.rollout
    if rollout.engine != "vllm" or rollout.kv_memory_gb or not engines_share_gpus(config, gpus_outside=gpus_outside):
        return []
    return [
        "`rollout.kv_memory_gb` is not set, and vLLM is on the GPUs of the models, where its KV cache would take the room of "
        "gradients and optimiser; set it to 4, say, and to more where `--check` finds room"
    ]
