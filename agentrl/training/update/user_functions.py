"""Look-up of the algorithm functions that a config names: built-in ones, or custom ones whose results are checked.

Torch broadcasts, so a result of the wrong shape would train silently with a wrong gradient.
Letters in shapes: N scored tokens; G trajectories of one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.advantage import ADVANTAGES, AdvantageFunction
from agentrl.algorithms.aggregation import AGGREGATIONS, Aggregation
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS, KlEstimator
from agentrl.algorithms.policy_loss import POLICY_LOSSES, ClipRange, PolicyLoss, PolicyLossFunction
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES, TokenAdvantage, TokenCredit
from agentrl.config.class_path import named
from agentrl.errors import ConfigError


class NotFiniteError(ConfigError):
    """Nan or infinity returned for finite numbers."""


def policy_loss(name: str) -> PolicyLossFunction:
    """Return the policy loss of a name or an import path; like all functions here, raises as `named` does.

    A custom function raises ConfigError if its result is invalid.
    """
    function: PolicyLossFunction = named(name, POLICY_LOSSES, key="algorithm.policy_loss")
    if name in POLICY_LOSSES:
        return function
    result_of = _Results(key="algorithm.policy_loss", name=name)

    def checked(
        logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
    ) -> PolicyLoss:
        loss = result_of.type(function(logprobs_N, old_logprobs_N, advantages_N, trajectory_N, clip), PolicyLoss)
        for part in ("ratio_N", "clipped_low_N", "clipped_high_N", "clipped_dual_N"):
            if part != "clipped_dual_N" or loss.clipped_dual_N is not None:
                result_of.shape(getattr(loss, part), logprobs_N, part)
        result_of.differentiable(loss.loss_N, logprobs_N, "loss_N")
        result_of.finite(loss.loss_N, (logprobs_N, old_logprobs_N, advantages_N), "loss_N")
        return loss

    return checked


def aggregation(name: str) -> Aggregation:
    """Return the aggregation of a name or an import path."""
    function: Aggregation = named(name, AGGREGATIONS, key="algorithm.aggregation")
    if name in AGGREGATIONS:
        return function
    result_of = _Results(key="algorithm.aggregation", name=name)

    def checked(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
        weights_N = function(trajectory_N, mean_length=mean_length, max_length=max_length)
        result_of.shape(weights_N, trajectory_N, "its result")
        result_of.finite(weights_N, (), "its result")
        return weights_N

    return checked


def kl_estimator(name: str) -> KlEstimator:
    """Return the estimator of the divergence of a name or an import path."""
    function: KlEstimator = named(name, KL_ESTIMATORS, key="algorithm.kl_estimator")
    if name in KL_ESTIMATORS:
        return function
    result_of = _Results(key="algorithm.kl_estimator", name=name)

    def checked(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
        kl_N = function(logprobs_N, other_logprobs_N)
        result_of.differentiable(kl_N, logprobs_N, "its result")
        result_of.finite(kl_N, (logprobs_N, other_logprobs_N), "its result")
        return kl_N

    return checked


def advantage(name: str) -> AdvantageFunction | TokenAdvantage:
    """Return the estimator of advantages, per group or per token, of a name or an import path."""
    key = "algorithm.advantage"
    function: AdvantageFunction | TokenAdvantage = named(name, {**ADVANTAGES, **TOKEN_ADVANTAGES}, key=key)
    if name in ADVANTAGES or name in TOKEN_ADVANTAGES:
        return function
    result_of = _Results(key=key, name=name)
    return (
        _checked_tokens(function, result_of)
        if isinstance(function, TokenAdvantage)
        else _checked_groups(function, result_of)
    )


def _checked_groups(function: AdvantageFunction, result_of: "_Results") -> AdvantageFunction:
    def checked(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
        result = function(groups, normalise_by_std=normalise_by_std)
        if not isinstance(result, list | tuple | Tensor) or len(result) != len(groups):
            raise result_of.error(
                f"gave {_described(result)}", f"a list with the advantages of each of {len(groups)} groups"
            )
        for number, (advantages_G, rewards_G) in enumerate(zip(result, groups, strict=True)):
            result_of.shape(advantages_G, rewards_G, f"group {number}")
            result_of.finite(advantages_G, (rewards_G,), f"group {number}")
        return list(result)

    return checked


def _checked_tokens(estimator: TokenAdvantage, result_of: "_Results") -> TokenAdvantage:
    def checked(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
        result = estimator.estimate(rewards_N, values_N, discount=discount, gae_lambda=gae_lambda)
        credit = result_of.type(result, TokenCredit)
        known = (rewards_N,) if values_N is None else (rewards_N, values_N)
        for part in ("advantages_N", "returns_N") if estimator.uses_values else ("advantages_N",):
            result_of.shape(getattr(credit, part), rewards_N, part)
            result_of.finite(getattr(credit, part), known, part)
        return credit

    return TokenAdvantage(estimate=checked, uses_values=estimator.uses_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """Checks of a custom function's results."""

    key: str
    name: str

    def error(self, problem: str, wanted: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Return the error for a problem, with the requirement."""
        return kind(f"`{self.key}`: `{self.name}` {problem}; it must give {wanted} (`docs/algorithms.md`)")

    def type(self, value: Any, wanted: type[Any]) -> Any:
        """Return `value`, or refuse it if it is no `wanted`."""
        if not isinstance(value, wanted):
            raise self.error(f"gave {_described(value)}", f"a `{wanted.__module__}.{wanted.__name__}`")
        return value

    def shape(self, value: Any, like: Tensor, part: str) -> None:
        """Refuse anything but a tensor of the shape of `like`."""
        if not isinstance(value, Tensor) or value.shape != like.shape:
            raise self.error(f"gave {_described(value)} as {part}", f"a tensor of shape {list(like.shape)} there")

    def differentiable(self, value: Any, logprobs_N: Tensor, part: str) -> None:
        """Refuse also a tensor without a gradient, if the log-probabilities have one."""
        self.shape(value, logprobs_N, part)
        if logprobs_N.requires_grad and not value.requires_grad:
            raise self.error(
                f"gave {part} without a gradient", "what is made of `logprobs_N`, and not detached from them"
            )

    def finite(self, value: Tensor, inputs: Sequence[Tensor], part: str) -> None:
        """Refuse nan and infinity, unless the inputs have some."""
        if not torch.isfinite(value).all() and all(bool(torch.isfinite(tensor).all()) for tensor in inputs):
            raise self.error(f"gave nan or infinity in {part}, of finite numbers", "finite ones", NotFiniteError)


def _described(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
