"""Requests that wait for room get it in turn, and stop waiting when the time is over."""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from code_judge_server.api.limits.body_limit import LimitBody
from code_judge_server.queueing.shared_capacity import SharedCapacity


class Waiting:
    """Clients that wait for room, and take it."""

    def __init__(self, room: SharedCapacity) -> None:
        self.room = room
        self.entered: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, amount: int, *, client: str | None = None) -> None:
        async def enter() -> None:
            await self.room.wait_until_fits(client or name, amount)
            self.room.take(client or name, amount)
            self.entered.append(name)

        self.tasks[name] = asyncio.create_task(enter())
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def give_back(self, client: str, amount: int) -> None:
        self.room.give_back(client, amount)
        await self.settle()


async def test_small_requests_do_not_overtake_a_large_one_that_waits() -> None:
    room = SharedCapacity(100)
    waiting = Waiting(room)
    for number in range(5):
        room.take(f"early {number}", 20)
    await waiting.ask("large", 90)
    await waiting.ask("small", 10)
    for number in range(4):
        await waiting.give_back(f"early {number}", 20)
        await waiting.ask(f"late {number}", 1)
        assert waiting.entered == []
    await waiting.give_back("early 4", 20)
    assert waiting.entered == ["large", "small"]
    await waiting.give_back("large", 90)
    assert waiting.entered == ["large", "small", "late 0", "late 1", "late 2", "late 3"]
    assert not room.has_waiters


async def test_a_request_blocked_by_its_own_client_is_overtaken_only_by_other_clients() -> None:
    room = SharedCapacity(100)
    room.take("greedy", 80)
    waiting = Waiting(room)
    await waiting.ask("greedy's next", 10, client="greedy")
    await waiting.ask("greedy's small", 1, client="greedy")
    await waiting.ask("modest", 10)
    assert waiting.entered == ["modest"]
    await waiting.give_back("greedy", 40)
    assert waiting.entered == ["modest", "greedy's next", "greedy's small"]


async def test_a_cancelled_wait_lets_the_next_one_in() -> None:
    room = SharedCapacity(10)
    room.take("early", 5)
    waiting = Waiting(room)
    await waiting.ask("large", 10)
    await waiting.ask("small", 5)
    assert waiting.entered == []
    waiting.tasks["large"].cancel()
    await waiting.settle()
    assert waiting.entered == ["small"]


async def test_room_taken_by_another_client_is_not_given_twice() -> None:
    room = SharedCapacity(10)
    room.take("early", 10)
    waiting = Waiting(room)
    await waiting.ask("first", 10)
    await waiting.ask("second", 10)
    room.give_back("early", 10)
    assert room.fits("native", 10)
    room.take("native", 10)  # before the first one has seen that it is its turn
    await waiting.settle()
    assert waiting.entered == []
    await waiting.give_back("native", 10)
    assert waiting.entered == ["first"]
    await waiting.give_back("first", 10)
    assert waiting.entered == ["first", "second"]


class Client:
    """The other end of a request: its messages, and its connection."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.replies: list[Message] = []

    def send(self, size: int, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})

    def go_away(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    async def reply(self, message: Message) -> None:
        self.replies.append(message)


class Application:
    """Reads a body to its end."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                self.bodies.append(body)
                return


def scope_of(size: int) -> dict[str, Any]:
    headers = [(b"content-length", str(size).encode())]
    return {"type": "http", "path": "/run", "headers": headers, "client": ("127.0.0.1", 1)}


async def test_a_body_that_finds_no_room_in_time_is_a_408() -> None:
    memory = SharedCapacity(100)
    memory.take("other", 100)
    guard = LimitBody(Application(), max_bytes=100, memory=memory, arrival_timeout_s=0.05)
    client = Client()
    client.send(20, more=False)
    async with asyncio.timeout(60):
        await guard(scope_of(20), client.messages.get, client.reply)
    assert client.replies[0]["status"] == 408
    assert (b"connection", b"close") in client.replies[0]["headers"]
    assert b"no room within 0.05 s: 100 of 100 bytes for requests (request_memory_mb)" in client.replies[1]["body"]
    assert not memory.has_waiters
    assert memory.used == 100


async def test_the_turn_of_a_disconnected_client_comes_and_goes() -> None:
    memory = SharedCapacity(100)
    memory.take("other", 100)
    application, client = Application(), Client()
    task = asyncio.create_task(
        LimitBody(application, max_bytes=100, memory=memory)(scope_of(20), client.messages.get, client.reply)
    )
    client.send(10, more=True)
    client.go_away()
    await asyncio.sleep(0.01)
    assert memory.has_waiters
    memory.give_back("other", 100)
    async with asyncio.timeout(60):
        await task
    assert not memory.has_waiters
    assert (client.replies, application.bodies, memory.used) == ([], [], 0)


async def test_a_body_is_not_read_before_there_is_room_for_it() -> None:
    memory = SharedCapacity(100)
    memory.take("other", 100)
    application, client = Application(), Client()
    task = asyncio.create_task(
        LimitBody(application, max_bytes=100, memory=memory)(scope_of(20), client.messages.get, client.reply)
    )
    for more in (True, False):
        client.send(10, more=more)
    await asyncio.sleep(0.01)
    assert client.messages.qsize() == 2
    memory.give_back("other", 100)
    await task
    assert (application.bodies, memory.used) == ([b"x" * 20], 0)
