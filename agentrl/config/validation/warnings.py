"""Warnings about settings of a training run that are allowed, but probably not intended."""

from agentrl.config.schema.algorithm import POLICY_LOSS_NAMES
from agentrl.config.schema.run import RewardSection, RunConfig
from agentrl.config.validation.unused_keys import changed


def config_warnings(config: RunConfig) -> list[str]:
    """Return the warnings, one line each."""
    return [
        *_divergence_without_gradient(config),
        *_bounds_that_never_act(config),
        *_stale_without_correction(config),
        *_unread_answer_format(config.reward),
        *_validation_that_is_off(config),
    ]


def _validation_that_is_off(config: RunConfig) -> list[str]:
    if config.data.validation_files and not config.validation.every_steps:
        return [
            "`data.validation_files` is unused while `validation.every_steps` is 0; set that to 10, for example, or leave "
            "the files out"
        ]
    return []


def _divergence_without_gradient(config: RunConfig) -> list[str]:
    algorithm = config.algorithm
    if algorithm.kl_coefficient > 0 and algorithm.kl_in == "loss" and algorithm.kl_estimator == "k1":
        return [
            "`algorithm.kl_estimator` is `k1`, whose gradient in the loss is 0 on average on fresh samples, whatever the "
            "divergence; unless intended, use `k2` or `k3`, or `algorithm.kl_in: reward`"
        ]
    return []


def _bounds_that_never_act(config: RunConfig) -> list[str]:
    """Return explicitly set bounds that have no effect, because with one update per step every ratio is 1."""
    algorithm, problems = config.algorithm, []
    if not config.actor.mini_batches_per_step == config.actor.epochs_per_step == 1:
        return []
    if algorithm.clip_ratio_dual and algorithm.policy_loss in POLICY_LOSS_NAMES:
        problems.append(
            f"`algorithm.clip_ratio_dual` is {algorithm.clip_ratio_dual:g}, but with one update per step every "
            "ratio is 1; unless intended, raise `actor.mini_batches_per_step` or `actor.epochs_per_step`, or leave it out"
        )
    if config.critic.value_clip and changed(config.critic, "value_clip"):
        problems.append(
            f"`critic.value_clip` is {config.critic.value_clip:g}, but with one update per step no value has changed yet; "
            "unless intended, raise `actor.mini_batches_per_step` or `actor.epochs_per_step`, or leave it out"
        )
    return problems


def _stale_without_correction(config: RunConfig) -> list[str]:
    if config.rollout.max_staleness and config.algorithm.rollout_correction.method == "none":
        return [
            f"`rollout.max_staleness` is {config.rollout.max_staleness}, and `algorithm.rollout_correction.method` is `none`, "
            "so tokens of older policies are trained on as if the present policy had sampled them; unless intended, use "
            "`truncate` or `mask`"
        ]
    return []


def _unread_answer_format(reward: RewardSection) -> list[str]:
    if any(scorer.class_name == RewardSection().class_name for scorer in reward.scorers):
        return []
    return [
        f"`reward.{name}` is `{value}`, but only the math reward reads it, and the reward is `{reward.label}`; leave it out"
        for name, value in changed(reward, "answer_format")
    ]
