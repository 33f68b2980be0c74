import asyncio

import pytest

from code_judge_server.queueing.shared_capacity import SharedCapacity


def fill(room: SharedCapacity, client: str) -> int:
    """Take one by one while it fits; return the number taken."""
    taken = 0
    while room.fits(client, 1):
        room.take(client, 1)
        taken += 1
    return taken


def test_one_client_leaves_a_fifth_for_others() -> None:
    room = SharedCapacity(1000)
    assert fill(room, "a") == 800
    assert fill(room, "b") == 160
    assert fill(room, "c") == 32


def test_a_client_that_holds_nothing_may_take_all_in_one_piece() -> None:
    room = SharedCapacity(1000)
    assert room.fits("a", 1000)
    assert not room.fits("a", 1001)


def test_returned_room_can_be_taken_again() -> None:
    room = SharedCapacity(10)
    room.take("a", 10)
    assert not room.fits("b", 1)
    room.give_back("a", 4)
    assert room.fits("b", 4)
    assert not room.fits("b", 5)


async def test_waiting_clients_enter_as_room_becomes_free() -> None:
    room = SharedCapacity(3)
    room.take("a", 3)
    entered: list[str] = []

    async def enter(client: str) -> None:
        await room.wait_until_fits(client, 1)
        room.take(client, 1)
        entered.append(client)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(enter(name)) for name in ("b", "c", "d")]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert entered == []
        room.give_back("a", 3)  # in one piece, for both who are left
    assert entered == ["c", "d"]
    assert not room.has_waiters


async def test_waiting_clients_can_be_refused() -> None:
    room = SharedCapacity(1)
    room.take("a", 1)
    waiting = asyncio.create_task(room.wait_until_fits("b", 1))
    await asyncio.sleep(0)
    room.refuse_waiting()
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_client_called_too_early_calls_the_next_in_turn() -> None:
    room = SharedCapacity(100)
    room.take("x", 100)
    entered: list[str] = []

    async def enter(client: str, amount: int, name: str) -> None:
        await room.wait_until_fits(client, amount)
        room.take(client, amount)
        entered.append(name)

    tasks = [asyncio.create_task(enter(*who)) for who in (("a", 60, "a1"), ("a", 60, "a2"), ("b", 15, "b"))]
    await asyncio.sleep(0)
    room.give_back("x", 75)
    for _ in range(10):
        await asyncio.sleep(0)
    assert entered == ["a1", "b"], "the second waits for what the first has taken"
    room.give_back("a", 60)
    await asyncio.gather(*tasks)
    assert entered == ["a1", "b", "a2"]


async def test_a_client_that_waits_for_room_of_others_is_not_overtaken() -> None:
    room = SharedCapacity(100)
    room.take("big", 1)
    room.take("x", 60)
    order: list[str] = []

    async def enter(client: str, amount: int) -> None:
        await room.wait_until_fits(client, amount)
        room.take(client, amount)
        order.append(client)

    waiting = [asyncio.create_task(enter("big", 70)), asyncio.create_task(enter("small", 10))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == []
    room.give_back("x", 60)
    await asyncio.gather(*waiting)
    assert order == ["big", "small"]
