"""Calls that go as one string of bytes, with a stand-in for Ray's actor; the runs in `tests/runners` use the real one."""

import asyncio
import pickle
from typing import Any, cast

import pytest

from agentrl.cluster.engine_handle import EngineHandle, PackedEngine
from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams

COMPLETION = Completion(
    token_ids=[7, 8], logprobs=[-0.25, -1.5], finish_reason=FinishReason.STOP, version_spans=((0, 3),), queue_s=0.5
)


class Engine(PackedEngine):
    """Notes what it is asked, and answers always the same."""

    def __init__(self, answer: Completion | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        self.asked.append((token_ids, params, request_id, deadline.remaining_s()))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Method:
    """A method of the actor; only bytes may pass."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remote(self, request: bytes) -> asyncio.Task[bytes]:
        assert type(request) is bytes
        return asyncio.create_task(self._engine.generate_packed(request))


class Actor:
    """The actor of an engine's worker."""

    def __init__(self, engine: Engine) -> None:
        self.generate_packed = Method(engine)


def handle_of(engine: Engine) -> EngineHandle:
    return EngineHandle.of(WorkerHandle(cast(Any, Actor(engine)), "engine 0"))


async def test_what_arrives_and_comes_back_is_what_was_sent():
    engine, params = Engine(COMPLETION), SamplingParams(max_tokens=9, seed=4, stop_token_ids=(8,))
    answer = await handle_of(engine).generate([1, 2], params, request_id="1-p-0", deadline=Deadline.after(1000))
    assert answer == COMPLETION
    [(token_ids, received, request_id, remaining_s)] = engine.asked
    assert (token_ids, received, request_id) == ([1, 2], params, "1-p-0")
    assert 0 < remaining_s <= 1000


async def test_an_error_of_the_engine_comes_out_as_itself():
    handle = handle_of(Engine(EngineError("the prompt is too long")))
    with pytest.raises(EngineError, match="the prompt is too long"):
        await handle.generate([1], SamplingParams(max_tokens=1), request_id="1-p-0", deadline=Deadline.after(1000))


def test_a_handle_that_was_sent_on_is_of_the_same_kind():
    sent = pickle.loads(pickle.dumps(EngineHandle(cast(Any, "the actor"), "engine 3")))
    assert (type(sent), repr(sent)) == (EngineHandle, "WorkerHandle(engine 3)")
