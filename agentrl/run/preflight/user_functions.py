"""Import of a config's own algorithm functions before any process starts; their results are checked at each call."""

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

_BUILT_IN = {
    "advantage": (*ADVANTAGE_NAMES, *TOKEN_ADVANTAGE_NAMES),
    "policy_loss": POLICY_LOSS_NAMES,
    "aggregation": AGGREGATION_NAMES,
    "kl_estimator": KL_ESTIMATOR_NAMES,
}


def check_algorithm_functions(algorithm: AlgorithmSection, *, has_critic: bool) -> None:
    """Refuse functions that cannot be imported, and an estimator of advantages that does not go with the critic.

    Raises:
        ConfigError: names the key and the reason.
    """
    for name, built_in in _BUILT_IN.items():
        key, path = f"algorithm.{name}", getattr(algorithm, name)
        if path in built_in:
            continue
        function = import_by_path(path, key=key)
        uses_values = getattr(function, "uses_values", None)  # only a `TokenAdvantage` has it
        if uses_values is None and not callable(function):
            raise ConfigError(f"`{key}` is `{path}`, which is no function")
        if name == "advantage" and has_critic and uses_values is None:
            raise ConfigError(
                f"`critic.path` names a critic, but `{key}` is `{path}`, which gives all tokens of a trajectory the same, so "
                "that it would have no returns to learn; make that a `TokenAdvantage`, or leave `critic.path` out"
            )
        if uses_values and not has_critic:
            raise ConfigError(
                f"`{key}` is `{path}`, which uses values, and there is no critic; name its model in `critic.path`"
            )
