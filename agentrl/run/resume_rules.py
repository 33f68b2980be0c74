"""Changes of a config between a run and its resumption: all keys that are not `resumable`, and stages that have begun."""

import itertools
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from agentrl.config.plain import flatten
from agentrl.config.schema.fields import is_resumable, leaves
from agentrl.config.schema.run import RunConfig, StageSection
from agentrl.config.schema.sft import SftConfig
from agentrl.errors import ConfigError

_NOT_COMPARED = {"stages", "run.num_steps", "run.dir"}
"""The number of steps is compared stage by stage, see `changes_of_stages`; a folder may be moved."""

EVALUATION_KEYS = ("reward.score_unfinished",)
"""Keys that are `resumable` and yet decide what an evaluation measures."""

Changes = dict[str, tuple[Any, Any]]
"""Differences of two configs: old and new value, by key."""


@cache
def _may_change(schema: type[BaseModel]) -> re.Pattern[str]:
    """Return a pattern of the keys whose fields are `resumable`, and of the keys below them."""
    names = [re.escape(key).replace("NAME", "[^.]+") for key, field in leaves(schema) if is_resumable(field)]
    return re.compile(rf"(?:{'|'.join(names)})(?:\..+)?")


def changes_of_keys(saved: bytes, config: RunConfig | SftConfig, *, more: Collection[str] = ()) -> Changes:
    """Return the changes of keys that are not `resumable`, and of the keys `more`, without those of stages."""
    before, now = _flattened(saved), flatten(config.model_dump())
    return {
        name: (before.get(name), now.get(name))
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name)
        and name not in _NOT_COMPARED
        and (name in more or not _may_change(type(config)).fullmatch(name))
    }


def changes_of_stages(saved: bytes, config: RunConfig, *, num_steps_done: int) -> Changes:
    """Return what differs from a saved config in the stages that have begun.

    The last of them may be given any number of steps but fewer than are done, as no other step depends on it.
    """
    before, now = _flattened(saved), flatten(config.model_dump())
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
    return {key: runs.get(key) if value is None else value for key, value in stage.model_dump().items()}


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
