"""A worker in another process, as an object whose methods can be awaited."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError, RayError, RayTaskError

from agentrl.errors import AgentRLError, NotBuiltError, ResultLostError, WorkerDiedError, WorkerError

T = TypeVar("T")

START_TIMEOUT_S = 1800.0
"""Start time after which a worker hangs; it may have to fetch a large model. Deaths are reported sooner."""


class WorkerHandle:
    """Awaitable methods of a Ray actor: `await handle.generate(...)`.

    It can be sent to other workers. An `AgentRLError` is raised as itself, without Ray's wrapping; any other error as a
    `WorkerError` that ends with the worker's traceback. Cancelling the await cancels the call in the worker.
    """

    def __init__(self, actor: ActorHandle, name: str) -> None:  # the name is for messages: `engine 0`
        self._actor = actor
        self._name = name

    def __repr__(self) -> str:
        return f"WorkerHandle({self._name})"

    def __str__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._actor, self._name))

    @property
    def caller_id(self) -> str:
        """Id of the worker as a caller of other workers; a restart keeps it."""
        return self._actor._actor_id.hex()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._result(getattr(self._actor, method).remote(*args, **kwargs))

        return call

    def kill(self) -> None:
        """End the process at once, however busy it is; calls to it fail from then on."""
        ray.kill(self._actor)

    def end_for_restart(self) -> None:
        """Kill the process; Ray restarts it if it was spawned with `restart`."""
        ray.kill(self._actor, no_restart=False)

    async def until_placed(self) -> None:
        """Return when Ray has placed and started the process."""
        await self._result(self._actor.__ray_ready__.remote())

    async def call_keeping_second(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Call a method that returns a pair; see `call_keeping_rest`."""
        first, [second] = await self.call_keeping_rest(method, 1, *args)
        return first, second

    async def call_keeping_rest(self, method: str, num_kept: int, *args: Any) -> tuple[Any, list[Any]]:
        """Call a method that returns `num_kept` values after the first; return the first, and references to the rest.

        The rest stays on the worker's node until it is fetched. As *returned* values they belong to this process and outlive
        the worker; values of `ray.put` inside the worker would not.
        """
        if num_kept == 0:  # Ray unpacks results of two values or more
            [result] = await self._result(getattr(self._actor, method).remote(*args))
            return result, []
        first, *kept = getattr(self._actor, method).options(num_returns=1 + num_kept).remote(*args)
        try:
            return await self._result(first), kept
        except AgentRLError:
            for ref in kept:
                with contextlib.suppress(RayError):
                    await ref  # the same error; Ray prints it unless it is retrieved
            raise

    async def _result(self, ref: Any) -> Any:
        try:
            return await fetched(ref)
        except asyncio.CancelledError:
            if ray.is_initialized():  # `ray.cancel` would start Ray after the end of a run
                ray.cancel(ref)
            raise
        except (RayActorError, ActorUnschedulableError) as error:  # unschedulable: its node is gone
            if isinstance(error, RayActorError) and error.actor_init_failed:
                raise NotBuiltError(f"{self._name}: it could not be built: {error}") from error
            raise WorkerDiedError(f"{self._name}: its process died") from error
        except RayTaskError as error:
            if isinstance(error.cause, AgentRLError):
                error.cause.add_note(f"raised in {self._name}: {error}")
                raise error.cause from None
            raise WorkerError(f"{self._name}: {error}") from None
        except RayError as error:
            # Such as an exception that cannot be unpickled: many of HTTP clients' take two arguments.
            raise WorkerError(f"{self._name}: {error}") from None


async def started(worker: WorkerHandle, *, timeout_s: float = START_TIMEOUT_S) -> None:
    """Call `start` of a worker.

    Raises:
        WorkerDiedError: it did not start within `timeout_s`, and is treated as dead.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await worker.start()
    except TimeoutError as error:
        raise WorkerDiedError(f"{worker}: has not started in {timeout_s:g} s, and is treated as dead") from error


async def fetched(ref: Any) -> Any:
    """Return the value of a reference.

    Raises:
        ResultLostError: its node is gone.
        RayError: any other failure.
    """
    try:
        return await ref
    except ObjectLostError as error:
        raise ResultLostError(f"a result of a worker is gone with the node that held it: {error}") from error


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await `calls` together and return their results in order; the first error ends the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
