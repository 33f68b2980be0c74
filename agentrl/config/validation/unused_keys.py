"""Keys that are set, but have no effect with the other keys."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from agentrl.config.schema.algorithm import ADVANTAGE_NAMES, TOKEN_ADVANTAGE_NAMES
from agentrl.config.schema.fields import Section
from agentrl.config.schema.run import RunConfig

Rule = tuple[str, tuple[str, ...], str]
"""A section, keys of it that have no effect, and the reason with the way out."""


def unused_keys(config: RunConfig, *, trains: bool) -> list[str]:
    """Return a problem for each key that is set without effect.

    Args:
        config: run config.
        trains: include the keys that only training reads.
    """
    rules = [*_rules(config), *(_training_rules(config) if trains else ())]
    return [
        f"`{section}.{name}` is {value}, but {reason}"
        for section, names, reason in rules
        for name, value in changed(attrgetter(section)(config), *names)
    ]


def changed(section: Section, *names: str) -> list[tuple[str, Any]]:
    """Return the given keys of a section that differ from their defaults, with their values."""
    given = {name: getattr(section, name) for name in names}
    fields = type(section).model_fields
    return [
        (name, value) for name, value in given.items() if value != fields[name].get_default(call_default_factory=True)
    ]


def _rules(config: RunConfig) -> Iterator[Rule]:
    engine, judge = config.rollout.engine, config.judge
    if engine != "vllm":
        names = ("tensor_parallel_size", "data_parallel_size", "kv_memory_gb", "replay_routing")
        yield "rollout", names, "only `rollout.engine: vllm` can do that"
    if engine != "openai":
        reason = f"`rollout.engine` is `{engine}`; set that to `openai`, or leave it out"
        yield "rollout.openai", ("base_urls", "model", "token_env"), reason
    if config.actor.lora.rank == 0:
        yield "actor.lora", ("alpha", "target_modules"), "`actor.lora.rank` is 0; set a rank, such as 32"
    if not judge.hosts:
        yield "judge", ("token_env",), "it is for running judges; those that the run starts get their own token"
    else:
        # Limits of programs are allowed: they must not change when the run resumes with judges of its own.
        reason = "it is for judges that the run starts, and `judge.hosts` names running ones; leave it out"
        yield "judge", ("num_slots", "placement"), reason


def _training_rules(config: RunConfig) -> Iterator[Rule]:
    algorithm, advantage = config.algorithm, config.algorithm.advantage
    if not config.has_reward_model:
        reason = "there is no reward model; name one in `reward.model.path`, or leave it out"
        yield "reward.model", ("weight", "activation"), reason
        yield "reward", ("weight",), reason
    if config.validation.every_steps == 0 and config.checkpoint.keep_best:
        yield "checkpoint", ("keep_best",), "`validation.every_steps` is 0; set that above 0, or leave it out"
    if config.actor.decay_steps == 0:
        reason = "`actor.decay_steps` is 0, and the learning rate constant; set that, or leave it out"
        yield "actor", ("final_learning_rate_fraction",), reason
    if algorithm.kl_coefficient == 0:
        reason = "`algorithm.kl_coefficient` is 0, so there is no such term; set it above 0"
        yield "algorithm", ("kl_in", "kl_target", "kl_estimator"), reason
    if advantage in ADVANTAGE_NAMES:
        reason = (
            f"`algorithm.advantage: {advantage}` gives all tokens of a trajectory the same; use one of "
            f"{', '.join(TOKEN_ADVANTAGE_NAMES)}"
        )
        yield "algorithm", ("discount", "gae_lambda"), reason
    elif advantage == "reinforce_plus_plus":
        yield (
            "algorithm",
            ("gae_lambda",),
            f"`algorithm.advantage: {advantage}` has no critic; use `gae`, or leave it out",
        )
    if not config.has_critic or advantage in (*ADVANTAGE_NAMES, "reinforce_plus_plus"):
        is_own = "." in advantage
        reason = (
            "there is no critic; name one in `critic.path`, or leave it out"
            if is_own
            else f"`algorithm.advantage: {advantage}` uses no critic; use `gae`, or leave it out"
        )
        yield "critic", tuple(type(config.critic).model_fields), reason
    if algorithm.policy_loss == "cispo":
        reason = "`algorithm.policy_loss: cispo` bounds weights already; use `ppo` or `gspo`, or leave it out"
        yield "algorithm", ("clip_ratio_dual",), reason
    if algorithm.selection.method == "all":
        reason = "`algorithm.selection.method: all` keeps every trajectory; use `resample_on_correct`, or leave it out"
        yield "algorithm.selection", ("keep", "positives", "min_positives", "min_negatives"), reason
    method = algorithm.rollout_correction.method
    if method == "none":
        reason = "`algorithm.rollout_correction.method` is `none`; use `truncate` or `mask`, or leave it out"
        yield "algorithm.rollout_correction", ("level", "min_ratio", "max_ratio"), reason
    elif method == "truncate":
        reason = "`algorithm.rollout_correction.method: truncate` has no lower bound; use `mask`, or leave it out"
        yield "algorithm.rollout_correction", ("min_ratio",), reason
