"""Calls to an engine in another process: one byte string per request and per reply.

Ray serialises every argument by itself in Python code: the four of a turn took a third of the whole call. As one byte string,
which Ray passes through, they cost what `pickle` takes. A handle travels to an agent-loop worker with every trajectory, also as
a byte string; the worker builds a handle from it once.
"""

import functools
import pickle
from collections import defaultdict
from typing import Any

import ray
from ray.actor import ActorHandle

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.types import Completion, Deadline, SamplingParams


class PackedEngine:
    """Base class of engine workers: answers `generate_packed` by its own `generate`, and tracks requests by caller."""

    generate: Any
    abort: Any

    def __init__(self) -> None:
        self._open_of: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of open requests, keyed by caller."""

    async def generate_packed(self, request: bytes) -> bytes:
        """Answer a request of `EngineHandle.generate`."""
        caller, token_ids, params, named = pickle.loads(request)
        self._open_of[caller].add(named["request_id"])
        try:
            completion = await self.generate(token_ids, params, **named)
        finally:
            self._open_of[caller].discard(named["request_id"])
        return pickle.dumps(completion, pickle.HIGHEST_PROTOCOL)

    async def abort_requests_of(self, caller: str) -> None:
        """Abort the requests of the dead process with this `WorkerHandle.caller_id`."""
        for request_id in list(self._open_of[caller]):
            await self.abort(request_id)


class EngineHandle(WorkerHandle):
    """A handle of a `PackedEngine` worker, or of one data-parallel copy of the policy in it."""

    def __init__(self, actor: ActorHandle, name: str, copy: int = 0) -> None:
        super().__init__(actor, name)
        self._which = {"copy": copy} if copy else {}
        self._copies: dict[int, EngineHandle] = {}
        self._packed: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._packed is None:
            arguments = (self._actor, self._name, *self._which.values())
            self._packed = pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)
        return _received, ((self._name, *self._which.values()), self._packed)

    def of_copy(self, number: int) -> "EngineHandle":
        """Return a handle whose `generate` uses copy `number` of the policy."""
        if number not in self._copies:
            self._copies[number] = EngineHandle(self._actor, self._name, number)
        return self._copies[number]

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        named = {"request_id": request_id, "deadline": deadline, **self._which}
        request = pickle.dumps((_own_id(), token_ids, params, named), pickle.HIGHEST_PROTOCOL)
        completion: Completion = pickle.loads(await self.generate_packed(request))
        return completion

    @classmethod
    def of(cls, handle: WorkerHandle) -> "EngineHandle":
        """Return another handle of the same worker."""
        return cls(handle._actor, handle._name)


_handles: dict[tuple[str | int, ...], tuple[bytes, EngineHandle]] = {}
"""Handles that this process received, by name and copy; a restarted engine arrives as other bytes."""


def _received(name: tuple[str | int, ...], packed: bytes) -> EngineHandle:
    known = _handles.get(name)
    if known is None or known[0] != packed:
        known = _handles[name] = packed, EngineHandle(*pickle.loads(packed))
    return known[1]


@functools.cache
def _own_id() -> str:
    """Return the `caller_id` of this process; empty if it is no worker."""
    if not ray.is_initialized():  # reading the context would start Ray
        return ""
    return ray.get_runtime_context().get_actor_id() or ""
