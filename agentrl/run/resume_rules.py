"""Config keys that may change when a run resumes: placement, speed, length, and later stages."""

import itertools
import re
from collections.abc import Mapping, Set
from dataclasses import asdict
from typing import Any

import yaml

from agentrl.config.plain import flatten
from agentrl.config.schema.checkpoint import StageSection
from agentrl.config.schema.run import RunConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.errors import ConfigError

MAY_CHANGE = {
    "run.accept_code_changes",
    "actor.num_workers",
    "actor.num_threads_per_worker",
    "actor.shard_size",
    "actor.sequence_parallel_size",
    "actor.max_tokens_per_micro_batch",
    "actor.share_prefixes",
    "actor.activation_checkpointing",
    "actor.cpu_offload",
    "actor.compile",
    "actor.liger",
    "critic.max_tokens_per_micro_batch",
    "reward.model.max_tokens_per_micro_batch",
    "reward.timeout_s",
    "reward.score_unfinished",
    "rollout.num_engines",
    "rollout.num_workers",
    "rollout.num_threads_per_engine",
    "rollout.tensor_parallel_size",
    "rollout.data_parallel_size",
    "rollout.kv_memory_gb",
    "rollout.max_concurrent_trajectories",
    "rollout.start_timeout_s",
    "rollout.tool_timeout_s",
    "rollout.turn_timeout_s",
    "rollout.trajectory_timeout_s",
    "rollout.max_infra_error_share",
    "judge.host_addr",
    "judge.host_port",
    "judge.hosts",
    "judge.token_env",
    "judge.placement",
    "judge.num_slots",
    "validation.every_steps",
    "checkpoint.every_steps",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "cluster.address",
    "cluster.gpu_memory_gb",
    "cluster.max_wait_s",
    "cluster.colocated",
    "cluster.weight_transport",
    "cluster.check_weights",
}
"""Keys that say where a run is made, how fast, in how much memory and how often it is looked at, not what it learns.

`reward.score_unfinished` is among them because a run under `zero` ends at its first negative reward, however late that comes.
"""
_MAY_CHANGE_IN = re.compile(r"cluster\.(pools|roles)\..*|cluster\.extra_roles\.[^.]+\.pool")
"""The same of keys with names of the user's in them; what an extra role is and does stays."""
_OF_STAGES = {"stages", "run.num_steps"}
"""Keys that are compared stage by stage: see `changes_of_stages`."""

Changes = dict[str, tuple[Any, Any]]
"""Differences of two configs: old and new value, by key."""


def changes_of_keys(
    saved: bytes, config: RunConfig | SftConfig, *, may_change: Set[str] = MAY_CHANGE | _OF_STAGES
) -> Changes:
    """Return what must not differ from a saved config and does, but for the stages."""
    before, now = _flattened(saved), flatten(asdict(config))
    return {
        name: (before.get(name), now.get(name))
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and name not in may_change and not _MAY_CHANGE_IN.fullmatch(name)
    }


def changes_of_stages(saved: bytes, config: RunConfig, *, num_steps_done: int) -> Changes:
    """Return what differs from a saved config in the stages that have begun.

    The last of them may be given any number of steps but fewer than are done, as no other step depends on it.
    """
    before, now = _flattened(saved), flatten(asdict(config))
    stages = config.stages or [StageSection(num_steps=config.run.num_steps)]
    begun = stages_begun(saved, num_steps_done=num_steps_done)
    num_steps_before = sum(stage.num_steps for stage in begun[:-1])
    changes: Changes = {}
    for index, stage in enumerate(begun):
        was = _filled(stage, before)
        is_now = _filled(stages[index], now) if index < len(stages) else {"num_steps": 0}
        if index == len(begun) - 1 and is_now["num_steps"] >= max(1, num_steps_done - num_steps_before):
            del is_now["num_steps"]
        changes |= {f"stages[{index}].{key}": (was[key], value) for key, value in is_now.items() if was[key] != value}
    if not (config.stages or before.get("stages")) and "stages[0].num_steps" in changes:
        changes["run.num_steps"] = changes.pop("stages[0].num_steps")
    return changes


def _filled(stage: StageSection, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what holds in a stage: what it does not name is the run's."""
    runs = {
        "train_files": config["data.train_files"],
        "max_response_tokens": config["rollout.max_response_tokens"],
        "max_turns": config["rollout.max_turns"],
    }
    return {key: runs.get(key) if value is None else value for key, value in asdict(stage).items()}


def stages_begun(saved: bytes, *, num_steps_done: int) -> list[StageSection]:
    """Return the stages of a saved config of which a step is done, and the first in any case; without any, the run is one."""
    config = _flattened(saved)
    stages = [StageSection(**stage) for stage in config.get("stages") or [{"num_steps": config["run.num_steps"]}]]
    starts = itertools.accumulate((stage.num_steps for stage in stages), initial=0)
    return [stage for start, stage in zip(starts, stages, strict=False) if start < max(1, num_steps_done)]


def refuse_changes(changes: Changes, *, where: str, key: str) -> None:
    """Refuse to resume the run that `where` names if there are changes; another `key` is the way out."""
    if changes:
        details = ", ".join(f"`{name}` was {was!r} and is {now!r}" for name, (was, now) in sorted(changes.items()))
        raise ConfigError(
            f"{where} a run of another config: {details}. Go on with the old values, or name another `{key}`."
        )


def _flattened(saved: bytes) -> dict[str, Any]:
    # Read as plain YAML: what the user escaped, such as `\\${x}` in a prompt, is a literal by now.
    return flatten(yaml.safe_load(saved))
