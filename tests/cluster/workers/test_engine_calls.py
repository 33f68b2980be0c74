"""Calls that go as one string of bytes, with a stand-in for Ray's actor; the runs in `tests/runners` use the real one."""

import asyncio
import pickle
from typing import Any, cast

import pytest

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.workers.engine_calls import EngineHandle, PackedEngine
from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from tests.cluster.workers import WaitingEngine

COMPLETION = Completion(
    token_ids=[7, 8], logprobs=[-0.25, -1.5], finish_reason=FinishReason.STOP, version_spans=((0, 3),), queue_s=0.5
)


class Engine(PackedEngine):
    """Notes what it is asked, and answers always the same."""

    def __init__(self, answer: Completion | Exception) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []
        self.copies: list[int] = []

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline, copy: int = 0
    ) -> Completion:
        self.copies.append(copy)
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


async def test_a_handle_of_a_copy_asks_that_one():
    engine = Engine(COMPLETION)
    handle = handle_of(engine)
    for number in (1, 0, 2):
        asked = handle.of_copy(number) if number else handle
        await asked.generate([1], SamplingParams(max_tokens=1), request_id="1-p-0", deadline=Deadline.after(1000))
    assert engine.copies == [1, 0, 2]


def sent(handle: EngineHandle) -> EngineHandle:
    return pickle.loads(pickle.dumps(handle))


def test_a_handle_that_is_sent_again_and_again_is_made_once_until_its_engine_is_another_one():
    first, second = (EngineHandle(cast(Any, actor), "engine 3") for actor in ("an actor", "the next"))
    received = sent(first)
    assert (type(received), repr(received), received._actor) == (EngineHandle, "WorkerHandle(engine 3)", "an actor")
    assert sent(first) is received
    assert sent(EngineHandle(cast(Any, "an actor"), "engine 4"))._name == "engine 4"
    assert sent(received) is received, "as any worker may send it on"
    assert sent(second)._actor == "the next"
    copy = sent(second.of_copy(2))
    assert (copy._which, copy._actor) == ({"copy": 2}, "the next")
    assert sent(second.of_copy(2)) is copy is not sent(second)


async def test_what_a_dead_process_has_asked_for_is_ended_and_nothing_else():
    engine = WaitingEngine({}, "engine")

    def ask(caller: str, request_id: str) -> asyncio.Task[bytes]:
        named = {"request_id": request_id, "deadline": Deadline.after(1000)}
        request = (caller, [1], SamplingParams(max_tokens=1), named)
        return asyncio.create_task(engine.generate_packed(pickle.dumps(request)))

    lost, others = [ask("dead", "a-0"), ask("dead", "b-0")], [ask("alive", "c-0")]
    await asyncio.sleep(0)
    await engine.abort_requests_of("dead")
    await asyncio.gather(*lost)
    assert await engine.waits_for() == {"c-0"}
    await engine.abort_requests_of("dead")  # nothing is left of it
    await engine.abort_requests_of("alive")
    await asyncio.gather(*others)
