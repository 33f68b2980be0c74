"""What becomes of a try to make a trajectory that failed: its class, and whether, when and how a fresh episode may help."""

import contextlib
import random
from collections.abc import Iterator, Sequence

from agentrl.config.schema import RolloutSection
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
"""How long an episode whose time is over has to say so in its own words; engines and tools take up to ten seconds of it."""

_AWAY = (FailureClass.JUDGE, FailureClass.TOOL, FailureClass.REWARD)
_MAX_MESSAGE_CHARACTERS = 1000
_FIRST_PAUSE_S = 1.0
_PAUSE_GROWTH = 4
_MAX_PAUSE_S = 30.0


class FailedTryError(Exception):
    """A try ended without a trajectory."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@contextlib.contextmanager
def failing_as(infrastructure: FailureClass, data: FailureClass) -> Iterator[None]:
    """Give what fails inside its class; `infrastructure` and `data` are for what does not tell by itself.

    Raises:
        FailedTryError: instead of a `RolloutError` or a `DataError`. An `EngineDeadError` passes: it is
            for who knows another engine. So does everything else: it is our fault, and ends the run.
    """
    try:
        yield
    except EngineDeadError:
        raise
    except DataError as error:
        cause = error.cause if isinstance(error, UnexplainedError) else ""
        raise _failed(data, error, cause) from error
    except (EngineError, WorkerDiedError) as error:  # the only workers that a worker asks are engines
        raise _failed(FailureClass.ENGINE, error) from error
    except JudgeUnavailableError as error:
        raise _failed(FailureClass.JUDGE, error) from error
    except RolloutError as error:
        raise _failed(infrastructure, error) from error


def worth_another(failures: Sequence[Failure], *, max_retries: int) -> bool:
    """Return whether a fresh episode may help after these failures of one trajectory.

    The world may have mended. An exception that nobody expected may come of what the policy wrote, and of the prompt's data
    where it comes a second time. Data that a tool or the reward refuses stays as it is.
    """
    last = failures[-1]
    if len(failures) > max_retries:
        return False
    if last.failure_class.is_data:
        return bool(last.cause) and all(earlier.cause != last.cause for earlier in failures[:-1])
    return True


def seed_suffix(failures: Sequence[Failure]) -> str:
    """Return what is added to the seed of a trajectory for its next try.

    Nothing where a judge, a tool or the reward was away: another seed would choose episodes that do without them, and a policy
    would be trained on these. Otherwise what it wrote may have broken the world, and would again.
    """
    num_seeds = sum(failure.failure_class not in _AWAY for failure in failures)
    return f"-retry{num_seeds}" if num_seeds else ""


def pause_s(num_failures: int) -> float:
    """Return how long to wait before the next try, in seconds; drawn, so that a thousand trajectories do not come at once."""
    return random.uniform(0.5, 1.0) * _longest_pause_s(num_failures)


def longest_s(rollout: RolloutSection, *, reward_timeout_s: float) -> float:
    """Return the seconds that a worker takes at most for one trajectory: all tries, and the pauses between them."""
    try_s = rollout.trajectory_timeout_s + HANG_GRACE_S + rollout.tool_timeout_s + reward_timeout_s
    pauses_s = sum(_longest_pause_s(retry) for retry in range(1, rollout.max_retries + 1))
    return (rollout.max_retries + 1) * try_s + pauses_s


def _longest_pause_s(num_failures: int) -> float:
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * _PAUSE_GROWTH ** (num_failures - 1))


def _failed(failure_class: FailureClass, error: Exception, cause: str = "") -> FailedTryError:
    # It may quote what a policy wrote: lone surrogates, which nothing can store, and any amount of it.
    message = str(error).encode("utf-8", "replace").decode()[:_MAX_MESSAGE_CHARACTERS]
    return FailedTryError(Failure(failure_class=failure_class, message=message, cause=cause))
