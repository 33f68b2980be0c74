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


class ExtraWorkerHandle(WorkerHandle):
    """A handle of a worker that Ray restarts whenever its process dies."""

    @classmethod
    def of(cls, handle: WorkerHandle) -> "ExtraWorkerHandle":
        """Return another handle of the same worker."""
        return cls(handle._actor, handle._name)

    async def num_deaths(self) -> int:
        """Return the number of restarts after a death; 0 if Ray does not answer."""
        try:
            return (await ask_ray(lambda: actor_info(self.caller_id))).get("NumRestarts", 0)
        except RayError:
            return 0


class ExtraRoles(dict[str, list[ExtraWorkerHandle]]):
    """Workers of the extra roles, keyed by role; their deaths are added to the run's history."""

    def __init__(self, workers: Mapping[str, list[ExtraWorkerHandle]], history: RunHistory) -> None:
        super().__init__(workers)
        self._history = history
        self._num_deaths: dict[ExtraWorkerHandle, int] = {}

    async def metrics(self) -> dict[str, float]:
        """Return the number of their deaths since the run began."""
        await asyncio.gather(*map(self._note_deaths, itertools.chain.from_iterable(self.values())))
        return {"cluster/extra_role_deaths": float(self._history.num_extra_role_deaths)}

    async def _note_deaths(self, worker: ExtraWorkerHandle) -> None:
        before, now = self._num_deaths.get(worker, 0), await worker.num_deaths()
        if now > before:
            self._num_deaths[worker] = now
            self._history.num_extra_role_deaths += now - before
            logger.warning("%s: died and was restarted", worker)


def spawn_extra_worker(
    cls: type, place: ResourcePool, config: Any, role: str, *, max_concurrency: int, rank: int = 0
) -> ExtraWorkerHandle:
    """Start a worker of an extra role; the arguments are those of `spawn`."""

    def __init__(self: Any, config: Any, role: str) -> None:  # `sys.exit` is an error: for Ray the process just ended
        contained(cast(Any, cls).__init__, self, config, role)

    serving = type(cls.__name__, (cls, _Serving), {"__module__": cls.__module__, "__init__": __init__})
    [worker] = spawn(serving, place, config, role, max_concurrency=max_concurrency, first_rank=rank, restart=True)
    return ExtraWorkerHandle.of(worker)
