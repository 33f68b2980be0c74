"""The room that all bodies share is never exceeded, and a body that does not arrive gives its room back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from code_judge_server.api.http_errors import RejectedError
from code_judge_server.api.limits.body_limit import LimitBody
from code_judge_server.queueing.shared_capacity import SharedCapacity


class Endpoint:
    """Reads bodies like an application, and holds them until told to release them."""

    def __init__(self) -> None:
        self.held = 0
        self.most_held = 0
        self.may_answer = asyncio.Event()

    async def __call__(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        size = 0
        try:
            while True:
                message = await receive()
                size += len(message["body"])
                self.held += len(message["body"])
                self.most_held = max(self.most_held, self.held)
                if not message["more_body"]:
                    break
            await self.may_answer.wait()
        finally:
            self.held -= size


def scope_of(path: str, *headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "path": path, "headers": list(headers), "client": ("127.0.0.1", 1)}


CHUNKED = (b"transfer-encoding", b"chunked")


def pieces(*sizes: int) -> Receive:
    async def generate() -> AsyncIterator[Message]:
        for index, size in enumerate(sizes, start=1):
            await asyncio.sleep(0)
            yield {"type": "http.request", "body": b"x" * size, "more_body": index < len(sizes)}

    return generate().__anext__


async def no_reply(_message: Message) -> None:
    raise AssertionError("nothing is refused here")


@pytest.mark.parametrize("headers", [(CHUNKED,), ((b"content-length", b"60"),)], ids=["chunked", "announced"])
async def test_waiting_bodies_never_exceed_the_capacity(headers: Any) -> None:
    memory = SharedCapacity(200)
    endpoint = Endpoint()
    guard = LimitBody(endpoint, max_bytes=100, memory=memory)
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(guard(scope_of("/run", *headers), pieces(20, 20, 20), no_reply))
        for _ in range(50):
            await asyncio.sleep(0)
            assert memory.used <= memory.capacity
        assert 0 < endpoint.held < 16 * 60
        endpoint.may_answer.set()
    assert endpoint.most_held <= memory.capacity
    assert memory.used == 0


async def test_a_chunked_body_that_has_arrived_holds_no_more_than_its_size() -> None:
    memory = SharedCapacity(200)
    endpoint = Endpoint()
    guard = LimitBody(endpoint, max_bytes=100, memory=memory)
    task = asyncio.create_task(guard(scope_of("/run", CHUNKED), pieces(20, 20), no_reply))
    for _ in range(10):
        await asyncio.sleep(0)
    assert memory.used == 40
    endpoint.may_answer.set()
    await task
    assert memory.used == 0


async def test_a_native_body_that_is_announced_holds_its_room_from_the_start() -> None:
    memory = SharedCapacity(100)
    guard = LimitBody(Endpoint(), max_bytes=100, memory=memory)
    forever = asyncio.Event()

    async def never() -> Message:
        await forever.wait()
        raise AssertionError("it never comes")

    slow = asyncio.create_task(guard(scope_of("/v1/submissions", (b"content-length", b"90")), never, no_reply))
    await asyncio.sleep(0)
    replies: list[Message] = []

    async def note(message: Message) -> None:
        replies.append(message)

    await guard(scope_of("/v1/submissions", (b"content-length", b"20")), pieces(20), note)
    assert replies[0]["status"] == 429
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    assert memory.used == 0


async def test_a_body_that_does_not_arrive_is_a_408_and_gives_its_room_back() -> None:
    memory = SharedCapacity(100)
    guard = LimitBody(Endpoint(), max_bytes=100, memory=memory, arrival_timeout_s=0.05)

    async def trickle() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(RejectedError) as refused:
        await guard(scope_of("/run", (b"content-length", b"90")), trickle, no_reply)
    assert refused.value.status_code == 408
    assert memory.used == 0


async def test_a_request_with_a_complete_body_has_no_timeout() -> None:
    endpoint = Endpoint()
    guard = LimitBody(endpoint, max_bytes=100, memory=SharedCapacity(100), arrival_timeout_s=0.02)
    task = asyncio.create_task(guard(scope_of("/run", (b"content-length", b"20")), pieces(20), no_reply))
    await asyncio.sleep(0.1)
    assert not task.done()
    endpoint.may_answer.set()
    await task


@pytest.mark.parametrize(
    "scope", [scope_of("/status"), scope_of("/ping", (b"content-length", b"60"))], ids=["no body", "probe"]
)
async def test_a_request_without_a_body_needs_no_room(scope: Scope) -> None:
    memory = SharedCapacity(100)
    memory.take("another", 100)
    passed: list[str] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(scope["path"])

    await asyncio.wait_for(LimitBody(app, max_bytes=80, memory=memory)(scope, pieces(0), no_reply), 60)
    assert passed == [scope["path"]]
