"""The way to an engine in another process: one string of bytes there, one back.

Ray serialises every argument of a call by itself, through Python code; the four of a turn cost a third of the whole call. As
one string, which Ray passes on as it is, they cost what `pickle` takes.
"""

import pickle
from typing import Any

from agentrl.cluster.handles import WorkerHandle
from agentrl.types import Completion, Deadline, SamplingParams


class PackedEngine:
    """What an engine's worker is made of: it answers `generate_packed` by its own `generate`."""

    generate: Any
    """See `Engine.generate`."""

    async def generate_packed(self, request: bytes) -> bytes:
        """Do what `EngineHandle.generate` asks for."""
        token_ids, params, request_id, deadline = pickle.loads(request)
        completion = await self.generate(token_ids, params, request_id=request_id, deadline=deadline)
        return pickle.dumps(completion, pickle.HIGHEST_PROTOCOL)


class EngineHandle(WorkerHandle):
    """A handle of a worker that is a `PackedEngine`."""

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        request = pickle.dumps((token_ids, params, request_id, deadline), pickle.HIGHEST_PROTOCOL)
        completion: Completion = pickle.loads(await self.generate_packed(request))
        return completion

    @classmethod
    def of(cls, handle: WorkerHandle) -> "EngineHandle":
        """Return another handle of the same worker."""
        return cls(handle._actor, handle._name)
