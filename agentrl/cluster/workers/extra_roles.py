"""Workers of extra roles: their classes know nothing of a run, and their processes may die at any time.

Ray restarts a dead worker without reporting it, so deaths are looked up and counted here.
"""

import asyncio
import inspect
import itertools
import logging
from collections.abc import Mapping
from typing import Any, cast

import ray
from ray.exceptions import RayError

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.polling import actor_info, ask_ray
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.run_history import RunHistory
from agentrl.errors import (
    ArgumentMismatchError,
    CallFailedError,
    RolloutError,
    WorkerDiedError,
)
from agentrl.tools.result_text import NoResultError, result_text
from agentrl.user_code import contained, contained_coroutine, raised_by_user, words_of

logger = logging.getLogger(__name__)


class _Serving:
    """Methods that are mixed into the class of a worker; methods of the class itself win."""

    async def agentrl_process(self) -> str:
        """Return an id that changes with every restart."""
        return ray.get_runtime_context().get_worker_id()

    async def agentrl_call(self, process: str, method: str, arguments: Mapping[str, Any]) -> str:
        """Call a method for an episode that `process` has answered before; return a `str`, or any other result as JSON.

        Raises:
            WorkerDiedError: that process has ended, and its state of the episode is lost.
            ArgumentMismatchError: the method does not take these arguments.
            RolloutError: the method raised one: the infrastructure failed.
            CallFailedError: the method raised anything else, or its result is no JSON; the policy may have caused either.
        """
        if process != await self.agentrl_process():
            raise WorkerDiedError(f"`{type(self).__name__}`: its process died after it had answered this episode")
        call = getattr(self, method)
        try:
            inspect.signature(call).bind(**arguments)
        except TypeError as error:
            raise ArgumentMismatchError(f"`{type(self).__name__}.{method}`: {error}") from error
        # `from None`: other processes may lack the exception's class, and Ray sends chained exceptions as text and dies of
        # half a surrogate pair in it, which a policy can send.
        try:
            outcome = await contained_coroutine(call(**arguments))
        except RolloutError as error:
            raise RolloutError(f"`{type(self).__name__}.{method}`: {words_of(error)}") from None
        except Exception as error:  # noqa: BLE001 - the method is the user's own
            raise CallFailedError(_in_one_line(raised_by_user(error))) from None
        try:
            return result_text(outcome, none_is_result=True)  # as an `end_method` returns it
        except NoResultError as error:
            raise CallFailedError(str(error)) from None


def _in_one_line(error: BaseException) -> str:
    """Return an error as `ValueError: there is no image 7`; a group as all of its errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_in_one_line, error.exceptions))
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class ExtraRoles(dict[str, list[WorkerHandle]]):
    """Workers of the extra roles, keyed by role; their deaths are added to the run's history."""

    def __init__(self, workers: Mapping[str, list[WorkerHandle]], history: RunHistory) -> None:
        super().__init__(workers)
        self._history = history
        self._num_deaths: dict[WorkerHandle, int] = {}

    async def metrics(self) -> dict[str, float]:
        """Return the number of their deaths since the run began."""
        await asyncio.gather(*map(self._note_deaths, itertools.chain.from_iterable(self.values())))
        return {"cluster/extra_role_deaths": float(self._history.num_extra_role_deaths)}

    async def _note_deaths(self, worker: WorkerHandle) -> None:
        before, now = self._num_deaths.get(worker, 0), await num_restarts(worker)
        if now > before:
            self._num_deaths[worker] = now
            self._history.num_extra_role_deaths += now - before
            logger.warning("%s: died and was restarted", worker)


async def num_restarts(worker: WorkerHandle) -> int:
    """Return how often Ray has restarted a worker; 0 if Ray does not answer."""
    try:
        return (await ask_ray(lambda: actor_info(worker.caller_id))).get("NumRestarts", 0)
    except RayError:
        return 0


def spawn_extra_worker(
    cls: type, place: ResourcePool, config: Any, role: str, *, max_concurrency: int, rank: int = 0
) -> WorkerHandle:
    """Start a worker of an extra role; the arguments are those of `spawn`."""

    def __init__(self: Any, config: Any, role: str) -> None:  # `sys.exit` is an error: for Ray the process just ended
        contained(cast(Any, cls).__init__, self, config, role)

    serving = type(cls.__name__, (cls, _Serving), {"__module__": cls.__module__, "__init__": __init__})
    [worker] = spawn(serving, place, config, role, max_concurrency=max_concurrency, first_rank=rank, restart=True)
    return worker
