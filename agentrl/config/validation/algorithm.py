"""Checks of `algorithm`, `critic` and `reward.model` beyond types: ranges, names, and switches without effect."""

from agentrl.config.schema.algorithm import (
    ADVANTAGE_NAMES,
    POLICY_LOSS_NAMES,
    TOKEN_ADVANTAGE_NAMES,
    AlgorithmSection,
    RolloutCorrectionSection,
)
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.unused_keys import changed


def algorithm_problems(config: RunConfig) -> list[str]:
    """Return the problems, one line each."""
    return [*_number_problems(config.algorithm), *_idle_switches(config)]


def _number_problems(algorithm: AlgorithmSection) -> list[str]:
    correction = algorithm.rollout_correction
    problems: list[str] = []
    if not correction.min_ratio <= 1 <= correction.max_ratio:
        problems.append(
            f"`algorithm.rollout_correction`: `min_ratio` ({correction.min_ratio}) and `max_ratio` ({correction.max_ratio}) "
            "must have 1 between them, the ratio of a token on which actor and engine agree"
        )
    if 0 < algorithm.clip_ratio_dual <= 1 + algorithm.clip_ratio_high:
        problems.append(
            f"`algorithm.clip_ratio_dual` is {algorithm.clip_ratio_dual}, and must be above 1 + `clip_ratio_high` "
            f"({1 + algorithm.clip_ratio_high:g}), or 0 for no such bound"
        )
    return [*problems, *_lower_clip_problems(algorithm)]


def _lower_clip_problems(algorithm: AlgorithmSection) -> list[str]:
    """Refuse a lower bound below 0; a user's loss may use the number differently."""
    low = algorithm.clip_ratio_low
    if algorithm.policy_loss in POLICY_LOSS_NAMES and low > 1:
        return [f"`algorithm.clip_ratio_low` is {low}, and must be at most 1: ratios below 1 - this are clipped"]
    return []


def _idle_switches(config: RunConfig) -> list[str]:
    """Return keys that are set without effect, or whose effect would differ from their name."""
    algorithm = config.algorithm
    problems = [
        *_idle_divergence(algorithm),
        *_idle_credit(config),
        *_idle_correction(algorithm.rollout_correction),
        *_idle_critic(config),
    ]
    if algorithm.selection.method == "all":
        problems += [
            f"`algorithm.selection.{key}` is set, but `algorithm.selection.method: all` keeps every trajectory; use "
            "`resample_on_correct`, or leave it out"
            for key, _ in changed(algorithm.selection, "keep", "positives", "min_positives", "min_negatives")
        ]
    if algorithm.policy_loss == "cispo" and algorithm.clip_ratio_dual:
        problems.append(
            f"`algorithm.clip_ratio_dual` is {algorithm.clip_ratio_dual}, but `algorithm.policy_loss: cispo` bounds weights "
            "already; use `ppo` or `gspo`, or leave it out"
        )
    if config.has_reward_model and config.algorithm.selection.drop_equal_reward:
        problems.append(
            "`algorithm.selection.drop_equal_reward` drops groups whose rewards are all equal before `reward.model` scores "
            "them, which may tell them apart; set `drop_equal_reward: false`"
        )
    if config.reward.weight != 1 and not config.has_reward_model:
        problems.append(
            f"`reward.weight` is {config.reward.weight}, but there is no reward model to weigh it against; name one in "
            "`reward.model.path`, or leave it out"
        )
    return problems


def _idle_divergence(algorithm: AlgorithmSection) -> list[str]:
    if algorithm.kl_coefficient == 0:
        return [
            f"`algorithm.{key}` is set, but `algorithm.kl_coefficient` is 0, so there is no such term; set it above 0"
            for key, _ in changed(algorithm, "kl_in", "kl_target", "kl_horizon", "kl_estimator")
        ]
    if algorithm.kl_target == 0 and changed(algorithm, "kl_horizon"):
        return [
            "`algorithm.kl_horizon` is set, but `algorithm.kl_target` is 0, so the coefficient stays; set one, or leave it out"
        ]
    return []


def _idle_credit(config: RunConfig) -> list[str]:
    algorithm, selection, problems = config.algorithm, config.algorithm.selection, []
    if algorithm.advantage in ADVANTAGE_NAMES:
        problems += [
            f"`algorithm.{key}` is set, but `algorithm.advantage: {algorithm.advantage}` gives all tokens of a trajectory the "
            f"same; use one of {', '.join(TOKEN_ADVANTAGE_NAMES)}"
            for key, _ in changed(algorithm, "discount", "gae_lambda")
        ]
        if config.rollout.samples_per_prompt == 1:
            problems.append(
                f"`rollout.samples_per_prompt` is 1, but `algorithm.advantage: {algorithm.advantage}` compares the samples of "
                f"a prompt, so that all advantages would be 0; take 2 or more, or one of {', '.join(TOKEN_ADVANTAGE_NAMES)}"
            )
        elif selection.method == "resample_on_correct" and selection.keep == 1:
            problems.append(
                f"`algorithm.selection.keep` is 1, but `algorithm.advantage: {algorithm.advantage}` compares the trajectories "
                "that are kept of a prompt, so that all advantages would be 0; keep 2 or more, or use one of "
                f"{', '.join(TOKEN_ADVANTAGE_NAMES)}"
            )
    elif algorithm.advantage == "reinforce_plus_plus" and changed(algorithm, "gae_lambda"):
        problems.append(
            "`algorithm.gae_lambda` is set, but `algorithm.advantage: reinforce_plus_plus` has no values to weigh rewards "
            "against; use `gae`, or leave it out"
        )
    return problems


def _idle_correction(correction: RolloutCorrectionSection) -> list[str]:
    if correction.method == "none":
        return [
            f"`algorithm.rollout_correction.{key}` is set, but `algorithm.rollout_correction.method` is `none`; use `truncate` "
            "or `mask`, or leave it out"
            for key, _ in changed(correction, "level", "min_ratio", "max_ratio")
        ]
    if correction.method == "truncate" and changed(correction, "min_ratio"):
        return [
            "`algorithm.rollout_correction.min_ratio` is set, but `algorithm.rollout_correction.method: truncate` has no lower "
            "bound; use `mask`, or leave it out"
        ]
    return []


def _idle_critic(config: RunConfig) -> list[str]:
    advantage = config.algorithm.advantage
    if advantage in (*ADVANTAGE_NAMES, "reinforce_plus_plus"):
        without = f"`algorithm.advantage: {advantage}` uses no critic; use `gae`, or leave it out"
    elif config.has_critic:
        return []
    else:
        without = "there is no critic; name one in `critic.path`, or leave it out"
    keys = changed(config.critic, *type(config.critic).model_fields)
    return [f"`critic.{key}` is set, but {without}" for key, _ in keys]
