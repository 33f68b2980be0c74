"""Relations between keys of `algorithm`, `critic`, `rollout` and `stages` that a training run must satisfy."""

from collections.abc import Iterator

from agentrl.config.schema.algorithm import ADVANTAGE_NAMES, POLICY_LOSS_NAMES, TOKEN_ADVANTAGE_NAMES, AlgorithmSection
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.unused_keys import changed


def algorithm_problems(config: RunConfig) -> Iterator[str]:
    """Yield the problems, one line each."""
    algorithm, reward = config.algorithm, config.reward
    yield from _bound_problems(algorithm)
    yield from _group_problems(config)
    if config.has_reward_model and algorithm.selection.drop_equal_reward:
        yield (
            "`algorithm.selection.drop_equal_reward` drops groups whose rewards are all equal before `reward.model` scores "
            "them, which may tell them apart; set `drop_equal_reward: false`"
        )
    if config.has_reward_model and reward.weight == reward.model.weight == 0:
        yield (
            "`reward.weight` and `reward.model.weight` are both 0, so that every trajectory is worth the same; set one above 0"
        )
    num_prompts, actor = config.rollout.prompts_per_step, config.actor
    if num_prompts % actor.mini_batches_per_step:
        yield (
            f"`actor.mini_batches_per_step` is {actor.mini_batches_per_step}, which does not divide the {num_prompts} "
            "groups of `rollout.prompts_per_step`; change one of them"
        )
    if 0 < actor.decay_steps <= actor.warmup_steps:
        yield (
            f"`actor.decay_steps` is {actor.decay_steps}, and must be above `actor.warmup_steps` ({actor.warmup_steps}), "
            "which it includes; or 0 for a constant learning rate"
        )


def _bound_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    correction, low, dual = algorithm.rollout_correction, algorithm.clip_ratio_low, algorithm.clip_ratio_dual
    if not correction.min_ratio <= 1 <= correction.max_ratio:
        yield (
            f"`algorithm.rollout_correction`: `min_ratio` ({correction.min_ratio}) and `max_ratio` ({correction.max_ratio}) "
            "must have 1 between them, the ratio of a token on which actor and engine agree"
        )
    if 0 < dual <= 1 + algorithm.clip_ratio_high:
        yield (
            f"`algorithm.clip_ratio_dual` is {dual}, and must be above 1 + `clip_ratio_high` "
            f"({1 + algorithm.clip_ratio_high:g}), or 0 for no such bound"
        )
    if algorithm.policy_loss in POLICY_LOSS_NAMES and low > 1:  # a user's loss may use the number differently
        yield f"`algorithm.clip_ratio_low` is {low}, and must be at most 1: ratios below 1 - this are clipped"


def _group_problems(config: RunConfig) -> Iterator[str]:
    """Yield sizes of groups, before and after selection, with which nothing would be learnt."""
    selection, num_samples = config.algorithm.selection, config.rollout.samples_per_prompt
    key, num_kept = "rollout.samples_per_prompt", num_samples
    if selection.method == "resample_on_correct":
        if selection.keep > num_samples:
            yield (
                f"`algorithm.selection.keep` is {selection.keep}, more than `rollout.samples_per_prompt` ({num_samples}) can "
                "give; lower it, or leave it out to keep half"
            )
        if selection.min_positives + selection.min_negatives > selection.keep:
            yield (
                f"`algorithm.selection.min_positives` ({selection.min_positives}) and `min_negatives` "
                f"({selection.min_negatives}) together exceed `keep` ({selection.keep})"
            )
        if num_samples > 1:
            key, num_kept = "algorithm.selection.keep", selection.keep
    if num_kept == 1 and config.algorithm.advantage in ADVANTAGE_NAMES:
        yield (
            f"`{key}` is 1, but `algorithm.advantage: {config.algorithm.advantage}` compares the trajectories of a prompt, so "
            f"that all advantages would be 0; take 2 or more, or one of {', '.join(TOKEN_ADVANTAGE_NAMES)}"
        )
    if num_samples == 1 and selection.drop_equal_reward:
        yield (
            "`rollout.samples_per_prompt` is 1, and `algorithm.selection.drop_equal_reward` drops groups whose rewards are all "
            "equal, as those of a single trajectory are; take more samples, or set `drop_equal_reward: false`"
        )


def stage_problems(config: RunConfig) -> Iterator[str]:
    """Yield problems of the stages, with the key and the way out."""
    for index, stage in enumerate(config.stages):
        if stage.train_files == []:
            yield f"`stages[{index}].train_files` is empty; name a file, or leave it out to go on with `data.train_files`"
        if stage.update_reference and not config.has_reference_model:
            yield (
                f"`stages[{index}].update_reference` is set, but `algorithm.kl_coefficient` is 0, or `actor.lora` keeps the "
                "base model as the reference; leave it out"
            )
    idle = changed(config.stages[0], "max_pass_rate", "reset_optimiser", "update_reference") if config.stages else []
    for key, _ in idle:
        yield f"`stages[0].{key}` is set, but before the first stage nothing was trained or rolled out; leave it out"
