"""Check of a config's own algorithm functions, before any process starts: import, signature and a trial call."""

import inspect
from typing import Any

from agentrl.config.class_path import import_by_path
from agentrl.config.schema.algorithm import (
    ADVANTAGE_NAMES,
    AGGREGATION_NAMES,
    KL_ESTIMATOR_NAMES,
    POLICY_LOSS_NAMES,
    TOKEN_ADVANTAGE_NAMES,
    AlgorithmSection,
)
from agentrl.errors import ConfigError


def check_algorithm_functions(algorithm: AlgorithmSection, *, has_critic: bool) -> list[str]:
    """Refuse the user's functions that cannot be imported or called as in an update, or that return something else.

    Returns:
        Warnings of the trial, which may not apply to an update.

    Raises:
        ConfigError: names the key and the reason.
    """
    if algorithm.advantage not in (*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES):
        _check_advantage(algorithm.advantage, has_critic=has_critic)
    if algorithm.policy_loss not in POLICY_LOSS_NAMES:
        function = import_by_path(algorithm.policy_loss, key="algorithm.policy_loss")
        _check_call(function, 5, (), key="algorithm.policy_loss", name=algorithm.policy_loss)
    if algorithm.aggregation not in AGGREGATION_NAMES:
        key, function = "algorithm.aggregation", import_by_path(algorithm.aggregation, key="algorithm.aggregation")
        _check_call(function, 1, ("mean_length", "max_length"), key=key, name=algorithm.aggregation)
    if algorithm.kl_estimator not in KL_ESTIMATOR_NAMES:
        function = import_by_path(algorithm.kl_estimator, key="algorithm.kl_estimator")
        _check_call(function, 2, (), key="algorithm.kl_estimator", name=algorithm.kl_estimator)
    if not _has_own(algorithm):
        return []
    # It imports torch, which a driver without functions of the user's own does not need.
    from agentrl.training.update.function_trial import try_functions

    return try_functions(algorithm)


def _has_own(algorithm: AlgorithmSection) -> bool:
    """Return whether any of the functions is the user's own."""
    ours = (*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES, *POLICY_LOSS_NAMES, *AGGREGATION_NAMES, *KL_ESTIMATOR_NAMES)
    named = (algorithm.advantage, algorithm.policy_loss, algorithm.aggregation, algorithm.kl_estimator)
    return not set(named) <= set(ours)


def _check_advantage(name: str, *, has_critic: bool) -> None:
    from agentrl.algorithms.token_advantage import TokenAdvantage

    key, function = "algorithm.advantage", import_by_path(name, key="algorithm.advantage")
    if not isinstance(function, TokenAdvantage):
        if hasattr(function, "estimate"):
            raise ConfigError(f"`{key}` is `{name}`, which has an `estimate` and is no `TokenAdvantage`; make it one")
        _check_call(function, 1, ("normalise_by_std",), key=key, name=name)
        if has_critic:
            raise ConfigError(
                f"`critic.path` names a critic, but `{key}` is `{name}`, which gives all tokens of a trajectory the same, so "
                "that it would have no returns to learn; make that a `TokenAdvantage`, or leave `critic.path` out"
            )
        return
    _check_call(function.estimate, 2, ("discount", "gae_lambda"), key=key, name=name)
    if function.uses_values and not has_critic:
        raise ConfigError(
            f"`{key}` is `{name}`, which uses values, and there is no critic; name its model in `critic.path`"
        )


def _check_call(function: Any, num_values: int, keywords: tuple[str, ...], *, key: str, name: str) -> None:
    """Refuse a function that cannot be called with `num_values` values and these keywords."""
    wanted = f"{num_values} values" + "".join(f", `{keyword}=`" for keyword in keywords)
    if not callable(function):
        raise ConfigError(f"`{key}` is `{name}`, which is no function; it is called with {wanted}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some built-in ones have none
    try:
        signature.bind(*[None] * num_values, **dict.fromkeys(keywords))
    except TypeError as error:
        raise ConfigError(f"`{key}` is `{name}`, which cannot be called with {wanted}: {error}") from error
