"""The workers of extra roles: of classes that know nothing of a run, whose processes may die or hang at any time.

Ray starts one that died again, without a word to the run; so its deaths are looked up and counted here. Of one that hangs
nobody tells: each is asked now and then, and ended where it says nothing.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

import ray
from ray._private.state import state
from ray.exceptions import RayError

from agentrl.cluster.handles import WorkerHandle
from agentrl.cluster.history import RunHistory
from agentrl.cluster.node_drain import asked
from agentrl.cluster.spawn import ResourcePool, check_worker_class, spawn
from agentrl.cluster.watching import watching
from agentrl.errors import (
    AgentRLError,
    ArgumentMismatchError,
    CallFailedError,
    NotBuiltError,
    RolloutError,
    WorkerDiedError,
)
from agentrl.tools.result_text import NoResultError, result_text
from agentrl.user_code import contained, contained_coroutine, raised_by_user, words_of

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_MAX_DEATHS = 2
"""Before the class is built. One may come of a node that was lost at that moment; a reason of its own strikes again."""

_ASK_EVERY_S = 60.0
_SILENT_S = 300.0
"""As for ranks: a class of the user's may keep its event loop for long, as while it compiles a model."""


class _Serving:
    """What a worker has beside its class; the class is named first, and keeps its own methods."""

    async def agentrl_process(self) -> str:
        """Return what tells this process from those that are started after it."""
        return ray.get_runtime_context().get_worker_id()

    async def agentrl_call(self, process: str, method: str, arguments: Mapping[str, Any]) -> str:
        """Call a method of the class for an episode that `process` has answered before.

        Returns:
            What the method did, anything but a `str` as JSON: values of the class's own need not be known elsewhere.

        Raises:
            WorkerDiedError: that process has ended, and with it what it kept of the episode.
            ArgumentMismatchError: the method does not take these arguments.
            RolloutError: it raised one: the world failed under it.
            CallFailedError: it raised anything else, or returned what is no JSON; both may be of the policy's making.
        """
        if process != await self.agentrl_process():
            raise WorkerDiedError(f"`{type(self).__name__}`: its process died after it had answered this episode")
        call = getattr(self, method)
        try:
            inspect.signature(call).bind(**arguments)
        except TypeError as error:
            raise ArgumentMismatchError(f"`{type(self).__name__}.{method}`: {error}") from error
        # What it raises is not chained: its class need not be known elsewhere, and Ray, which sends what is chained as text,
        # ends the process over half a surrogate pair there, which a policy can send.
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
    """Return `ValueError: there is no image 7`; of a group, what each of its tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_in_one_line, error.exceptions))
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class ExtraWorkerHandle(WorkerHandle):
    """A handle of a worker that Ray starts again whenever its process dies, and for ever."""

    @classmethod
    def of(cls, handle: WorkerHandle) -> "ExtraWorkerHandle":
        """Return another handle of the same worker."""
        return cls(handle._actor, handle._name)

    async def until_placed(self) -> None:
        """Return when the process is there, with its class built.

        Raises:
            NotBuiltError: the constructor raised, or its process ended in it and again when Ray had started it again.
        """
        num_before = await self.num_deaths()
        placed = asyncio.ensure_future(super().until_placed())
        try:
            while True:
                await asyncio.wait({placed}, timeout=_LOOK_EVERY_S)
                if placed.done():
                    return placed.result()
                if await self.num_deaths() - num_before >= _MAX_DEATHS:
                    raise NotBuiltError(
                        f"{self}: its process ended {_MAX_DEATHS} times while its class was being built (`__init__`): for want "
                        "of memory, by a crash of native code, or by itself. What it wrote is in `ray_logs/` in the run's "
                        "directory; build the class by hand with the same `config`, or give it more memory"
                    )
        finally:
            placed.cancel()
            await asyncio.gather(placed, return_exceptions=True)

    async def num_deaths(self) -> int:
        """Return how often the process has died and been started again; 0 where Ray does not say."""
        return (await self._told()).get("NumRestarts", 0)

    async def end_if_silent(self) -> None:
        """End the process where it has said nothing for too long, so that Ray starts it again."""
        try:
            async with asyncio.timeout(_SILENT_S):
                await self.agentrl_process()
        except TimeoutError:
            if (await self._told()).get("State") == "ALIVE":  # one that is being built again cannot answer
                logger.warning("%s: says nothing for %g s; it is ended, and Ray starts it again", self, _SILENT_S)
                self.end_for_restart()
        except AgentRLError:
            pass  # it died, and Ray starts it again

    async def _told(self) -> Mapping[str, Any]:
        try:
            return await asked(lambda: state.actor_table(self.caller_id))
        except RayError:
            return {}


class ExtraRoles(Mapping[str, Sequence[ExtraWorkerHandle]]):
    """The workers of each extra role, by its name."""

    def __init__(self, workers: Mapping[str, Sequence[ExtraWorkerHandle]], history: RunHistory) -> None:
        """Take started workers, and the run's history, to which their deaths are added."""
        self._workers = workers
        self._history = history
        self._num_deaths: dict[ExtraWorkerHandle, int] = {}

    def __getitem__(self, role: str) -> Sequence[ExtraWorkerHandle]:
        return self._workers[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    async def metrics(self) -> dict[str, float]:
        """Return how many of their processes have died since the run began."""
        await asyncio.gather(*map(self._note_deaths, self._all()))
        return {"cluster/extra_role_deaths": float(self._history.num_extra_role_deaths)}

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Tell of deaths, and end workers that hang, for as long as the context lasts."""
        async with watching(self._watch(), what="workers of extra roles"):
            yield

    def _all(self) -> list[ExtraWorkerHandle]:
        return [worker for workers in self._workers.values() for worker in workers]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            await asyncio.gather(*(worker.end_if_silent() for worker in self._all()))
            await asyncio.gather(*map(self._note_deaths, self._all()))

    async def _note_deaths(self, worker: ExtraWorkerHandle) -> None:
        before, now = self._num_deaths.get(worker, 0), await worker.num_deaths()
        if now > before:
            self._num_deaths[worker] = now
            self._history.num_extra_role_deaths += now - before
            logger.warning("%s: died; Ray starts it again", worker)


def spawn_extra_worker(
    cls: type, place: ResourcePool, config: Any, role: str, *, max_concurrency: int, rank: int = 0
) -> ExtraWorkerHandle:
    """Start a worker of a class that serves a role of its own; the arguments are those of `spawn`.

    Raises:
        ConfigError: the class cannot be a worker.
    """
    check_worker_class(cls)
    serving = type(cls.__name__, (cls, _Serving), {"__module__": cls.__module__} | _built_in_words(cls))
    [worker] = spawn(serving, place, config, role, max_concurrency=max_concurrency, first_rank=rank, restart=True)
    return ExtraWorkerHandle.of(worker)


def _built_in_words(cls: type) -> dict[str, Any]:
    """Return the constructor of `cls`, if it has one, in which `sys.exit` is an error: for Ray it is a process that ended."""
    if cls.__init__ is object.__init__:
        return {}

    def __init__(self: Any, config: Any, role: str) -> None:
        contained(cast(Any, cls).__init__, self, config, role)

    return {"__init__": __init__}
