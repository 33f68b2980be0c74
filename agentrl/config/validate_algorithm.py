"""What the types cannot say of `algorithm`, `critic` and `reward.model`: ranges, names, and switches without effect."""

from agentrl.config.algorithm_schema import ADVANTAGE_NAMES, POLICY_LOSS_NAMES, TOKEN_ADVANTAGE_NAMES, AlgorithmSection
from agentrl.config.schema import RunConfig


def algorithm_counts(config: RunConfig) -> dict[str, int]:
    """Return what must be at least 1."""
    algorithm, critic = config.algorithm, config.critic
    return {
        "algorithm.selection.keep": algorithm.selection.keep,
        "algorithm.selection.min_group_size": algorithm.selection.min_group_size,
        "algorithm.kl_horizon": algorithm.kl_horizon,
        "critic.mini_batches_per_step": critic.mini_batches_per_step,
        "critic.max_tokens_per_micro_batch": critic.max_tokens_per_micro_batch,
        "reward.model.max_tokens_per_micro_batch": config.reward.model.max_tokens_per_micro_batch,
    }


def algorithm_not_negative(config: RunConfig) -> dict[str, float]:
    """Return what may be 0."""
    algorithm, critic = config.algorithm, config.critic
    return {
        "algorithm.selection.min_positives": algorithm.selection.min_positives,
        "algorithm.selection.min_negatives": algorithm.selection.min_negatives,
        "algorithm.selection.max_refill_rounds": algorithm.selection.max_refill_rounds,
        "algorithm.kl_coefficient": algorithm.kl_coefficient,
        "algorithm.kl_target": algorithm.kl_target,
        "algorithm.entropy_coefficient": algorithm.entropy_coefficient,
        "algorithm.clip_ratio_dual": algorithm.clip_ratio_dual,
        "algorithm.clip_ratio_low": algorithm.clip_ratio_low,
        "algorithm.clip_ratio_high": algorithm.clip_ratio_high,
        "algorithm.rollout_correction.min_ratio": algorithm.rollout_correction.min_ratio,
        "critic.learning_rate": critic.learning_rate,
        "critic.warmup_steps": critic.warmup_steps,
        "critic.weight_decay": critic.weight_decay,
        "critic.value_clip": critic.value_clip,
    }


def algorithm_problems(config: RunConfig) -> list[str]:
    """Return what is wrong, one line each."""
    return [*_unknown_names(config.algorithm), *_number_problems(config.algorithm), *_idle_switches(config)]


def _unknown_names(algorithm: AlgorithmSection) -> list[str]:
    choices = {
        "algorithm.advantage": (algorithm.advantage, (*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES)),
        "algorithm.policy_loss": (algorithm.policy_loss, POLICY_LOSS_NAMES),
    }
    return [
        f"`{key}` is `{name}`, and must be one of {', '.join(names)}, or an import path such as `my_module.my_function`"
        for key, (name, names) in choices.items()
        if name not in names and "." not in name
    ]


def _number_problems(algorithm: AlgorithmSection) -> list[str]:
    correction = algorithm.rollout_correction
    shares = {"discount": algorithm.discount, "gae_lambda": algorithm.gae_lambda}
    problems = [
        f"`algorithm.{key}` is {share}, and must be from 0 to 1" for key, share in shares.items() if not 0 <= share <= 1
    ]
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
    return problems


def _idle_switches(config: RunConfig) -> list[str]:
    """Return the keys that are set and would change nothing."""
    algorithm, problems = config.algorithm, []
    idle_without_kl = {"kl_in": algorithm.kl_in != "loss", "kl_target": algorithm.kl_target > 0}
    if algorithm.kl_coefficient == 0:
        problems += [
            f"`algorithm.{key}` is set, but `algorithm.kl_coefficient` is 0, so there is no such term; set it above 0"
            for key, is_set in idle_without_kl.items()
            if is_set
        ]
    if algorithm.advantage in ADVANTAGE_NAMES:
        idle_per_trajectory = {"discount": algorithm.discount != 1, "gae_lambda": algorithm.gae_lambda != 1}
        problems += [
            f"`algorithm.{key}` is set, but `algorithm.advantage: {algorithm.advantage}` gives all tokens of a trajectory the "
            f"same; use one of {', '.join(TOKEN_ADVANTAGE_NAMES)}"
            for key, is_set in idle_per_trajectory.items()
            if is_set
        ]
    if config.critic.path is not None and algorithm.advantage in (*ADVANTAGE_NAMES, "reinforce_plus_plus"):
        problems.append(
            f"`critic.path` is set, but `algorithm.advantage: {algorithm.advantage}` asks no critic; use `gae`, or leave it out"
        )
    if config.reward.weight != 1 and not config.has_reward_model:
        problems.append(
            f"`reward.weight` is {config.reward.weight}, but there is no reward model to weigh it against; name one in "
            "`reward.model.path`, or leave it out"
        )
    return problems
