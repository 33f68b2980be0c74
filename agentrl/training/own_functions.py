"""The functions that a config names: one of ours, or one of the user's own, whose results are looked at.

Torch broadcasts, so that a result of another shape than was asked for would train, with another gradient than was meant.
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
    """A function gave nan or infinity, of finite numbers."""


def policy_loss(name: str) -> PolicyLossFunction:
    """Return the policy loss of a name or an import path; errors are those of `named`, as of all functions here.

    One of the user's own raises ConfigError where its result is not what was asked for; so do all others.
    """
    function: PolicyLossFunction = named(name, POLICY_LOSSES, key="algorithm.policy_loss")
    if name in POLICY_LOSSES:
        return function
    result_of = _Results(key="algorithm.policy_loss", name=name)

    def looked_at(
        logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
    ) -> PolicyLoss:
        loss = result_of.type(function(logprobs_N, old_logprobs_N, advantages_N, trajectory_N, clip), PolicyLoss)
        for part in ("ratio_N", "clipped_low_N", "clipped_high_N", "clipped_dual_N"):
            if part != "clipped_dual_N" or loss.clipped_dual_N is not None:
                result_of.shape(getattr(loss, part), logprobs_N, part)
        result_of.differentiable(loss.loss_N, logprobs_N, "loss_N")
        result_of.finite(loss.loss_N, (logprobs_N, old_logprobs_N, advantages_N), "loss_N")
        return loss

    return looked_at


def aggregation(name: str) -> Aggregation:
    """Return what weighs tokens, likewise."""
    function: Aggregation = named(name, AGGREGATIONS, key="algorithm.aggregation")
    if name in AGGREGATIONS:
        return function
    result_of = _Results(key="algorithm.aggregation", name=name)

    def looked_at(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
        weights_N = function(trajectory_N, mean_length=mean_length, max_length=max_length)
        result_of.shape(weights_N, trajectory_N, "its result")
        result_of.finite(weights_N, (), "its result")
        return weights_N

    return looked_at


def kl_estimator(name: str) -> KlEstimator:
    """Return what estimates the divergence, likewise."""
    function: KlEstimator = named(name, KL_ESTIMATORS, key="algorithm.kl_estimator")
    if name in KL_ESTIMATORS:
        return function
    result_of = _Results(key="algorithm.kl_estimator", name=name)

    def looked_at(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
        kl_N = function(logprobs_N, other_logprobs_N)
        result_of.differentiable(kl_N, logprobs_N, "its result")
        result_of.finite(kl_N, (logprobs_N, other_logprobs_N), "its result")
        return kl_N

    return looked_at


def advantage(name: str) -> AdvantageFunction | TokenAdvantage:
    """Return what estimates advantages, likewise: of groups, or of tokens."""
    key = "algorithm.advantage"
    found: AdvantageFunction | TokenAdvantage = named(name, {**ADVANTAGES, **TOKEN_ADVANTAGES}, key=key)
    if name in ADVANTAGES or name in TOKEN_ADVANTAGES:
        return found
    result_of = _Results(key=key, name=name)
    return _of_tokens(found, result_of) if isinstance(found, TokenAdvantage) else _of_groups(found, result_of)


def _of_groups(function: AdvantageFunction, result_of: "_Results") -> AdvantageFunction:
    def looked_at(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
        given = function(groups, normalise_by_std=normalise_by_std)
        if not isinstance(given, list | tuple | Tensor) or len(given) != len(groups):
            raise result_of.error(
                f"gave {_described(given)}", f"a list with the advantages of each of {len(groups)} groups"
            )
        for number, (advantages_G, rewards_G) in enumerate(zip(given, groups, strict=True)):
            result_of.shape(advantages_G, rewards_G, f"group {number}")
            result_of.finite(advantages_G, (rewards_G,), f"group {number}")
        return list(given)

    return looked_at


def _of_tokens(estimator: TokenAdvantage, result_of: "_Results") -> TokenAdvantage:
    def looked_at(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
        given = estimator.estimate(rewards_N, values_N, discount=discount, gae_lambda=gae_lambda)
        credit = result_of.type(given, TokenCredit)
        known = (rewards_N,) if values_N is None else (rewards_N, values_N)
        for part in ("advantages_N", "returns_N") if estimator.uses_values else ("advantages_N",):
            result_of.shape(getattr(credit, part), rewards_N, part)
            result_of.finite(getattr(credit, part), known, part)
        return credit

    return TokenAdvantage(estimate=looked_at, uses_values=estimator.uses_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """Looks at what a function of the user's own gave."""

    key: str
    name: str

    def error(self, problem: str, wanted: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Return the error for what it did, and what is asked of it."""
        return kind(f"`{self.key}`: `{self.name}` {problem}; it must give {wanted} (`docs/algorithms.md`)")

    def type(self, value: Any, wanted: type[Any]) -> Any:
        """Return `value`, which must be a `wanted`."""
        if not isinstance(value, wanted):
            raise self.error(f"gave {_described(value)}", f"a `{wanted.__module__}.{wanted.__name__}`")
        return value

    def shape(self, value: Any, like: Tensor, part: str) -> None:
        """Refuse what is no tensor of the shape of `like`."""
        if not isinstance(value, Tensor) or value.shape != like.shape:
            raise self.error(f"gave {_described(value)} as {part}", f"a tensor of shape {list(like.shape)} there")

    def differentiable(self, value: Any, logprobs_N: Tensor, part: str) -> None:
        """Refuse the same, and what has no gradient though the log-probabilities have one."""
        self.shape(value, logprobs_N, part)
        if logprobs_N.requires_grad and not value.requires_grad:
            raise self.error(
                f"gave {part} without a gradient", "what is made of `logprobs_N`, and not detached from them"
            )

    def finite(self, value: Tensor, made_from: Sequence[Tensor], part: str) -> None:
        """Refuse NaN and infinity, where they are of its own making."""
        if not torch.isfinite(value).all() and all(bool(torch.isfinite(one).all()) for one in made_from):
            raise self.error(f"gave nan or infinity in {part}, of finite numbers", "finite ones", NotFiniteError)


def _described(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
