"""Look-up of the algorithm functions that a config names: built-in ones, or custom ones whose results are checked.

Torch broadcasts, so a result of the wrong shape would train silently with a wrong gradient.
Letters in shapes: N scored tokens; G trajectories of one group.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from agentrl.algorithms.advantage import ADVANTAGES, AdvantageFunction
from agentrl.algorithms.aggregation import AGGREGATIONS, Aggregation
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS, KlEstimator
from agentrl.algorithms.policy_loss import POLICY_LOSSES, ClipRange, PolicyLoss, PolicyLossFunction
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES, TokenAdvantage, TokenCredit
from agentrl.config.class_path import named
from agentrl.errors import ConfigError


def policy_loss(name: str) -> PolicyLossFunction:
    """Return the policy loss of a name or an import path; like all functions here, raises as `named` does.

    A custom function raises ConfigError if its result is invalid.
    """
    where = "algorithm.policy_loss"
    function: PolicyLossFunction = named(name, POLICY_LOSSES, key=where)
    if name in POLICY_LOSSES:
        return function
    where = f"`{where}`: `{name}`"

    def checked(
        logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
    ) -> PolicyLoss:
        loss = function(logprobs_N, old_logprobs_N, advantages_N, trajectory_N, clip)
        _require_type(loss, PolicyLoss, where)
        for part in ("ratio_N", "clipped_low_N", "clipped_high_N", "clipped_dual_N"):
            if part != "clipped_dual_N" or loss.clipped_dual_N is not None:
                _require_shape(getattr(loss, part), logprobs_N, f"{where} gave {part}")
        _require_gradient(loss.loss_N, logprobs_N, f"{where} gave loss_N")
        return loss

    return checked


def aggregation(name: str) -> Aggregation:
    """Return the aggregation of a name or an import path."""
    function: Aggregation = named(name, AGGREGATIONS, key="algorithm.aggregation")
    if name in AGGREGATIONS:
        return function

    def checked(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
        weights_N = function(trajectory_N, mean_length=mean_length, max_length=max_length)
        _require_shape(weights_N, trajectory_N, f"`algorithm.aggregation`: `{name}` gave its result")
        return weights_N

    return checked


def kl_estimator(name: str) -> KlEstimator:
    """Return the estimator of the divergence of a name or an import path."""
    function: KlEstimator = named(name, KL_ESTIMATORS, key="algorithm.kl_estimator")
    if name in KL_ESTIMATORS:
        return function

    def checked(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
        kl_N = function(logprobs_N, other_logprobs_N)
        _require_gradient(kl_N, logprobs_N, f"`algorithm.kl_estimator`: `{name}` gave its result")
        return kl_N

    return checked


def advantage(name: str) -> AdvantageFunction | TokenAdvantage:
    """Return the estimator of advantages, per group or per token, of a name or an import path."""
    built_in: dict[str, AdvantageFunction | TokenAdvantage] = {**ADVANTAGES, **TOKEN_ADVANTAGES}
    function = named(name, built_in, key="algorithm.advantage")
    where = f"`algorithm.advantage`: `{name}`"
    if name in built_in:
        return function
    if not isinstance(function, TokenAdvantage):
        return _checked_groups(function, where)

    def checked(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
        credit = function.estimate(rewards_N, values_N, discount=discount, gae_lambda=gae_lambda)
        _require_type(credit, TokenCredit, where)
        for part in ("advantages_N", "returns_N") if function.uses_values else ("advantages_N",):
            _require_shape(getattr(credit, part), rewards_N, f"{where} gave {part}")
        return credit

    return replace(function, estimate=checked)


def _checked_groups(function: AdvantageFunction, where: str) -> AdvantageFunction:
    def checked(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
        result = function(groups, normalise_by_std=normalise_by_std)
        if not isinstance(result, list | tuple | Tensor) or len(result) != len(groups):
            raise ConfigError(f"{where} must give a list with the advantages of each of {len(groups)} groups")
        for advantages_G, rewards_G in zip(result, groups, strict=True):
            _require_shape(advantages_G, rewards_G, f"{where} gave a group")
        return list(result)

    return checked


def _require_type(value: object, wanted: type[Any], where: str) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(
            f"{where} gave a {type(value).__name__}; it must give a `{wanted.__module__}.{wanted.__name__}`"
        )


def _require_shape(value: Any, like: Tensor, where: str) -> None:
    if not isinstance(value, Tensor) or value.shape != like.shape:
        shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(f"{where} as {shown}; it must be a tensor of shape {list(like.shape)} (`docs/algorithms.md`)")


def _require_gradient(value: Any, logprobs_N: Tensor, where: str) -> None:
    _require_shape(value, logprobs_N, where)
    if logprobs_N.requires_grad and not value.requires_grad:
        raise ConfigError(
            f"{where} without a gradient; compute it from `logprobs_N`, not detached (`docs/algorithms.md`)"
        )
