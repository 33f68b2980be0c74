"""Keys that are set, and that nothing would read beside the others."""

from collections.abc import Iterator
from typing import Any

from agentrl.config.algorithm_schema import LoraSection, RewardModelSection
from agentrl.config.checkpoint_schema import CheckpointSection
from agentrl.config.schema import JudgeSection, RunConfig, ValidationSection


def idle_judge_keys(judge: JudgeSection) -> list[str]:
    """Return what is said of judges that the run starts, where it starts none."""
    if judge.host_addr is None and not judge.hosts:
        return []
    names = ("num_slots", "max_wall_time_s", "max_memory_mb")
    reason = "and it is for judges that the run starts, but `judge.host_addr` or `judge.hosts` names running ones"
    return [
        f"`judge.{name}` is {value}, {reason}; set it where they are started, and leave it out here"
        for name, value in _changed(judge, JudgeSection(), names)
    ]


def idle_lora_keys(lora: LoraSection) -> list[str]:
    """Return what is said of LoRA's factors, where there are none."""
    if lora.rank != 0:
        return []
    return [
        f"`actor.lora.{name}` is {value}, but `actor.lora.rank` is 0; set a rank, such as 32"
        for name, value in _changed(lora, LoraSection(), ("alpha", "target_modules"))
    ]


def idle_training_keys(config: RunConfig) -> list[str]:
    """Return what a training run would not read."""
    problems: list[str] = []
    reward = config.reward
    if not config.has_reward_model:
        problems += [
            f"`reward.model.{name}` is {value}, but there is no reward model; name one in `reward.model.path`, or leave it out"
            for name, value in _changed(
                reward.model, RewardModelSection(), ("weight", "activation", "max_tokens_per_micro_batch")
            )
        ]
    elif reward.weight == 0 and reward.model.weight == 0:
        problems.append(
            "`reward.weight` and `reward.model.weight` are both 0, so that every trajectory is worth the same; set one above 0"
        )
    if config.validation.every_steps == 0:
        reason = "but `validation.every_steps` is 0, and nothing is validated; set that above 0, or leave it out"
        problems += [
            f"`validation.{name}` is {value}, {reason}"
            for name, value in _changed(config.validation, ValidationSection(), ("samples_per_prompt",))
        ]
        problems += [
            f"`checkpoint.{name}` is {value}, {reason}"
            for name, value in _changed(config.checkpoint, CheckpointSection(), ("keep_best",))
            if value != 0  # says what is so anyway
        ]
    return problems


def _changed(section: Any, default: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a section that are not as they are when left out, with their values."""
    for name in names:
        value = getattr(section, name)
        if value != getattr(default, name):
            yield name, value
