"""Keys that are set, but have no effect with the other keys."""

from typing import Any

from agentrl.config.schema.algorithm import LoraSection, UpdateSection
from agentrl.config.schema.fields import Section
from agentrl.config.schema.run import JudgeSection, RunConfig


def idle_judge_keys(judge: JudgeSection) -> list[str]:
    """Return keys for judges that the run starts, if it starts none.

    Limits of programs are allowed: they must not change when the run resumes with judges of its own.
    """
    if judge.host_addr is None and not judge.hosts:
        return []
    reason = "which is for judges that the run starts, but `judge.host_addr` or `judge.hosts` names running ones"
    return [
        f"`judge.{name}` is {value}, {reason}; leave it out, and set it where they are started"
        for name, value in changed(judge, "num_slots")
    ]


def idle_lora_keys(lora: LoraSection) -> list[str]:
    """Return keys of LoRA's factors, if there are none."""
    if lora.rank != 0:
        return []
    return [
        f"`actor.lora.{name}` is {value}, but `actor.lora.rank` is 0; set a rank, such as 32"
        for name, value in changed(lora, "alpha", "target_modules")
    ]


def idle_training_keys(config: RunConfig) -> list[str]:
    """Return keys that a training run would not read."""
    problems: list[str] = []
    reward = config.reward
    if not config.has_reward_model:
        problems += [
            f"`reward.model.{name}` is {value}, but there is no reward model; name one in `reward.model.path`, or leave it out"
            for name, value in changed(reward.model, "weight", "activation", "max_tokens_per_micro_batch")
        ]
    elif reward.weight == 0 and reward.model.weight == 0:
        problems.append(
            "`reward.weight` and `reward.model.weight` are both 0, so that every trajectory is worth the same; set one above 0"
        )
    updates: dict[str, UpdateSection] = {"actor": config.actor, "critic": config.critic}
    problems += [
        f"`{key}.{name}` is {value}, but `{key}.decay_steps` is 0, and the learning rate constant; set that to the steps of "
        "the run, or leave it out"
        for key, update in updates.items()
        if update.decay_steps == 0
        for name, value in changed(update, "final_learning_rate_fraction")
    ]
    if config.validation.every_steps == 0:
        problems += [
            f"`checkpoint.{name}` is {value}, but `validation.every_steps` is 0, and nothing is validated; set that above 0, "
            "or leave it out"
            for name, value in changed(config.checkpoint, "keep_best")
            if value != 0  # 0 is consistent
        ]
    return problems


def changed(section: Section, *names: str) -> list[tuple[str, Any]]:
    """Return the given keys of a section that differ from their defaults, with their values."""
    given = {name: getattr(section, name) for name in names}
    fields = type(section).model_fields
    return [
        (name, value) for name, value in given.items() if value != fields[name].get_default(call_default_factory=True)
    ]
