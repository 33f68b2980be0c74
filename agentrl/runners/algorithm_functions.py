"""Looks, before any process starts, whether the functions that a config names by their import path fit into an update."""

import inspect
from typing import Any

from agentrl.config.algorithm_schema import (
    ADVANTAGE_NAMES,
    AGGREGATION_NAMES,
    KL_ESTIMATOR_NAMES,
    POLICY_LOSS_NAMES,
    TOKEN_ADVANTAGE_NAMES,
    AlgorithmSection,
)
from agentrl.config.class_path import import_by_path
from agentrl.errors import ConfigError


def check_algorithm_functions(algorithm: AlgorithmSection) -> None:
    """Refuse functions of the user's own that cannot be imported, or not be called as an update calls them.

    Raises:
        ConfigError: which key, and why.
    """
    if algorithm.advantage not in (*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES):
        key, found = "algorithm.advantage", import_by_path(algorithm.advantage, key="algorithm.advantage")
        if hasattr(found, "estimate"):  # a `TokenAdvantage`
            _check_call(found.estimate, 2, ("discount", "gae_lambda"), key=key, name=algorithm.advantage)
        else:
            _check_call(found, 1, ("normalise_by_std",), key=key, name=algorithm.advantage)
    if algorithm.policy_loss not in POLICY_LOSS_NAMES:
        found = import_by_path(algorithm.policy_loss, key="algorithm.policy_loss")
        _check_call(found, 5, (), key="algorithm.policy_loss", name=algorithm.policy_loss)
    if algorithm.aggregation not in AGGREGATION_NAMES:
        key, found = "algorithm.aggregation", import_by_path(algorithm.aggregation, key="algorithm.aggregation")
        _check_call(found, 1, ("mean_length", "max_length"), key=key, name=algorithm.aggregation)
    if algorithm.kl_estimator not in KL_ESTIMATOR_NAMES:
        found = import_by_path(algorithm.kl_estimator, key="algorithm.kl_estimator")
        _check_call(found, 2, (), key="algorithm.kl_estimator", name=algorithm.kl_estimator)


def _check_call(function: Any, num_values: int, keywords: tuple[str, ...], *, key: str, name: str) -> None:
    """Refuse what could not be called in an update, with so many values and these keywords."""
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
