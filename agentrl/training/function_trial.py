"""Calls the user's own functions of an algorithm on a few tokens, so that a wrong result is told before anything starts."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from agentrl.algorithms.policy_loss import ClipRange
from agentrl.algorithms.token_advantage import TokenAdvantage
from agentrl.errors import ConfigError
from agentrl.training import own_functions

if TYPE_CHECKING:
    from agentrl.config.schema import AlgorithmSection

logger = logging.getLogger(__name__)


def try_functions(algorithm: "AlgorithmSection") -> None:
    """Call all functions that a config names with three tokens, and with none, as on a rank that has nothing to do.

    What they raise themselves is told and no reason to refuse them: some compute on GPUs alone.

    Raises:
        ConfigError: one gave what it must not; see `own_functions`.
    """
    for count in (3, 0):
        _try("algorithm.policy_loss", algorithm.policy_loss, count, partial(_call_loss, algorithm))
        _try("algorithm.aggregation", algorithm.aggregation, count, _call_aggregation)
        _try("algorithm.kl_estimator", algorithm.kl_estimator, count, partial(_call_estimator, algorithm))
        _try("algorithm.advantage", algorithm.advantage, count, partial(_call_advantage, algorithm))


def _try(key: str, name: str, count: int, call: Callable[[str, int], Any]) -> None:
    try:
        call(name, count)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - of any kind: it is the user's own
        raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
        logger.warning("`%s`: `%s`, tried on %d tokens of the CPU, raised %s", key, name, count, raised)


def _call_loss(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    clip = ClipRange(low=algorithm.clip_ratio_low, high=algorithm.clip_ratio_high, dual=algorithm.clip_ratio_dual)
    old_N, advantages_N = torch.full((count,), -1.1), torch.linspace(-1.0, 1.0, count)
    own_functions.policy_loss(name)(_logprobs(count), old_N, advantages_N, _trajectory(count), clip)


def _call_aggregation(name: str, count: int) -> None:
    own_functions.aggregation(name)(_trajectory(count), mean_length=1.5, max_length=8)


def _call_estimator(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    logprobs_N = _logprobs(count)
    own_functions.kl_estimator(name)(
        logprobs_N.detach() if algorithm.kl_in_reward else logprobs_N, torch.full((count,), -1.1)
    )


def _call_advantage(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    estimator = own_functions.advantage(name)
    rewards_N = torch.linspace(0.0, 1.0, count)
    if isinstance(estimator, TokenAdvantage):
        values_N = torch.full((count,), 0.5) if estimator.uses_values else None
        estimator.estimate(rewards_N, values_N, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda)
    elif count:  # a group has a trajectory at least
        # Of different rewards, as what is not is most often dropped (`selection.drop_equal_reward`).
        estimator([rewards_N, torch.tensor([1.0, 0.0])], normalise_by_std=algorithm.normalise_by_std)


def _logprobs(count: int) -> torch.Tensor:
    """Return what has a gradient, as of a forward pass."""
    return torch.full((count,), -1.0, requires_grad=True) * 1.0


def _trajectory(count: int) -> torch.Tensor:
    """Return two trajectories of two tokens and one."""
    return torch.tensor([0, 0, 1])[:count]
