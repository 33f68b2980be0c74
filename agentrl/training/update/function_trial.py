"""Trial of a user's custom algorithm functions on a few tokens, to report wrong results before anything starts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from agentrl.algorithms.policy_loss import ClipRange
from agentrl.algorithms.token_advantage import TokenAdvantage
from agentrl.errors import ConfigError
from agentrl.training.update import user_functions
from agentrl.training.update.user_functions import NotFiniteError
from agentrl.user_code import contained, described

if TYPE_CHECKING:
    from agentrl.config.schema.run import AlgorithmSection


def try_functions(algorithm: "AlgorithmSection") -> list[str]:
    """Call all functions that a config names with three tokens, and with none, as on an idle rank; return warnings.

    Their own exceptions, nan and infinity are only warnings: a function may need a GPU, or other numbers than these.

    Raises:
        ConfigError: one returned something invalid; see `user_functions`.
    """
    calls: dict[tuple[str, str], Callable[[str, int], Any]] = {
        ("algorithm.policy_loss", algorithm.policy_loss): partial(_call_loss, algorithm),
        ("algorithm.aggregation", algorithm.aggregation): _call_aggregation,
        ("algorithm.kl_estimator", algorithm.kl_estimator): partial(_call_estimator, algorithm),
        ("algorithm.advantage", algorithm.advantage): partial(_call_advantage, algorithm),
    }
    return [
        f"`{key}`: `{name}`, tried on {count} made-up tokens of the CPU, {problem}"
        for (key, name), call in calls.items()
        for count in (3, 0)
        if (problem := _problem(partial(call, name, count)))
    ]


def _problem(call: Callable[[], Any]) -> str:
    """Return a failure that may not occur in an update; empty if there is none."""
    try:
        contained(call)
    except NotFiniteError:
        return "gave nan or infinity, which ends a run that meets it in an update"
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - user code
        return f"raised {described(error)}"
    return ""


def _call_loss(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    clip = ClipRange(low=algorithm.clip_ratio_low, high=algorithm.clip_ratio_high, dual=algorithm.clip_ratio_dual)
    old_N, advantages_N = torch.full((count,), -1.1), torch.linspace(-1.0, 1.0, count)
    user_functions.policy_loss(name)(_logprobs(count), old_N, advantages_N, _trajectory(count), clip)


def _call_aggregation(name: str, count: int) -> None:
    user_functions.aggregation(name)(_trajectory(count), mean_length=1.5, max_length=8)


def _call_estimator(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    logprobs_N = _logprobs(count)
    user_functions.kl_estimator(name)(
        logprobs_N.detach() if algorithm.kl_in_reward else logprobs_N, torch.full((count,), -1.1)
    )


def _call_advantage(algorithm: "AlgorithmSection", name: str, count: int) -> None:
    estimator = user_functions.advantage(name)
    rewards_N = torch.linspace(0.0, 1.0, count)
    if isinstance(estimator, TokenAdvantage):
        values_N = torch.full((count,), 0.5) if estimator.uses_values else None
        estimator.estimate(rewards_N, values_N, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda)
    elif count:  # a group is never empty
        # Rewards differ, because groups of equal rewards are dropped by default (`selection.drop_equal_reward`).
        estimator([rewards_N, torch.tensor([1.0, 0.0])], normalise_by_std=algorithm.normalise_by_std)


def _logprobs(count: int) -> torch.Tensor:
    """Return log-probabilities with a gradient, as after a forward pass."""
    return torch.full((count,), -1.0, requires_grad=True) * 1.0


def _trajectory(count: int) -> torch.Tensor:
    """Return the trajectory numbers of two trajectories, of two tokens and of one."""
    return torch.tensor([0, 0, 1])[:count]
