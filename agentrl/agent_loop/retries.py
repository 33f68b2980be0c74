"""Retries of failed trajectories: the class of a failure, whether to retry, the pause and the seed."""

import contextlib
import random
from collections.abc import Iterator, Sequence

from agentrl.config.schema.run import RolloutSection
from agentrl.errors import (
    DataError,
    EngineDeadError,
    EngineError,
    JudgeUnavailableError,
    RolloutError,
    UnexplainedError,
    WorkerDiedError,
)
from agentrl.types import Failure, FailureClass

HANG_GRACE_S = 15.0
"""Extra seconds for an episode to report its own time-out; engines and tools take up to ten of them."""

MAX_RETRIES = 2
"""Retries of a trajectory lost to the infrastructure, before it is left out of its group: what fails thrice fails again."""
_UNAVAILABLE = (FailureClass.JUDGE, FailureClass.TOOL, FailureClass.ENVIRONMENT, FailureClass.REWARD)
_MAX_MESSAGE_CHARACTERS = 1000
_FIRST_PAUSE_S = 1.0
_PAUSE_GROWTH = 4
_MAX_PAUSE_S = 30.0


class FailedTryError(Exception):
    """A try that ended without a trajectory."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@contextlib.contextmanager
def failing_as(infrastructure: FailureClass, data: FailureClass) -> Iterator[None]:
    """Convert errors inside into a classified failure; `infrastructure` and `data` are the classes of unspecific errors.

    Raises:
        FailedTryError: instead of a `RolloutError` or a `DataError`. An `EngineDeadError` passes, because the manager
            moves the trajectory to another engine. All other errors pass too: they are bugs, and end the run.
    """
    try:
        yield
    except EngineDeadError:
        raise
    except DataError as error:
        cause = error.cause if isinstance(error, UnexplainedError) else ""
        raise _failed(data, error, cause) from error
    except (EngineError, WorkerDiedError) as error:  # a worker calls no other workers than engines
        raise _failed(FailureClass.ENGINE, error) from error
    except JudgeUnavailableError as error:
        raise _failed(FailureClass.JUDGE, error) from error
    except RolloutError as error:
        raise _failed(infrastructure, error) from error


def should_retry(failures: Sequence[Failure]) -> bool:
    """Return whether a fresh episode may succeed after these failures of one trajectory.

    Infrastructure failures are always retried, up to `MAX_RETRIES`. An unexpected exception may come from the policy's text and
    is retried; the second time, it is attributed to the prompt's data. Data that a tool or the reward refuses is not retried.
    """
    last = failures[-1]
    if len(failures) > MAX_RETRIES:
        return False
    if last.failure_class.is_data:
        return bool(last.cause) and all(earlier.cause != last.cause for earlier in failures[:-1])
    return True


def seed_suffix(failures: Sequence[Failure]) -> str:
    """Return the suffix of a trajectory's seed for its next try.

    Failures of a judge, a tool, the environment or the reward do not change the seed: a new seed would favour episodes that do
    not use them, and bias the training. Other failures do, because the text that was sampled may have caused them and would do
    so again.
    """
    num_seeds = sum(failure.failure_class not in _UNAVAILABLE for failure in failures)
    return f"-retry{num_seeds}" if num_seeds else ""


def pause_s(num_failures: int) -> float:
    """Return the pause before the next try in seconds; random, so that a thousand trajectories do not retry at once."""
    return random.uniform(0.5, 1.0) * _longest_pause_s(num_failures)


def longest_s(rollout: RolloutSection, *, reward_timeout_s: float) -> float:
    """Return a worker's longest time for one trajectory in seconds: all tries, and the pauses between them."""
    try_s = rollout.trajectory_timeout_s + HANG_GRACE_S + rollout.tool_timeout_s + reward_timeout_s
    pauses_s = sum(_longest_pause_s(retry) for retry in range(1, MAX_RETRIES + 1))
    return (MAX_RETRIES + 1) * try_s + pauses_s


def _longest_pause_s(num_failures: int) -> float:
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * _PAUSE_GROWTH ** (num_failures - 1))


def _failed(failure_class: FailureClass, error: Exception, cause: str = "") -> FailedTryError:
    # The message may quote the policy's text: of any length, with lone surrogates, which cannot be stored.
    message = str(error).encode("utf-8", "replace").decode()[:_MAX_MESSAGE_CHARACTERS]
    return FailedTryError(Failure(failure_class=failure_class, message=message, cause=cause))
