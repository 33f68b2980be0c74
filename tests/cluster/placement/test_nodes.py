"""Nodes that leave and join, and processes that wait for room on them, in virtual time and without a cluster."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.exceptions import RayError

from agentrl import clock
from agentrl.cluster.placement import nodes as module
from agentrl.cluster.placement.nodes import Nodes
from agentrl.cluster.run_history import Node, RunHistory
from agentrl.errors import InsufficientResourcesError, NotBuiltError, WorkerDiedError
from agentrl.simulation.virtual_time import run_in_virtual_time

HEAD = Node(address="10.0.0.1", has={"CPU": 4.0, "GPU": 8.0}, free={"CPU": 1.0})
LOOK_S = 5.0
"""Interval of the looks for room."""
OTHER = Node(address="10.0.0.2", has={"CPU": 4.0}, free={"CPU": 4.0})


@dataclass
class World:
    """The nodes as Ray reports them."""

    nodes: Mapping[str, Node] | RayError = field(default_factory=lambda: {"a": HEAD, "b": OTHER})
    think: Callable[[], None] = lambda: None
    """Called before Ray answers."""

    def look(self) -> Mapping[str, Node]:
        self.think()
        if isinstance(self.nodes, RayError):
            raise self.nodes
        return self.nodes


class Waiting:
    """A process that gets a place after `after_s`, where it is built in `build_s`, or dies if it `dies`.

    It loses that place `loses_after_s` after it was spawned, as its node leaves.
    """

    def __init__(
        self,
        name: str,
        after_s: float,
        *,
        build_s: float = 0.0,
        dies: bool = False,
        loses_after_s: float = math.inf,
    ) -> None:
        self.name, self.after_s, self.build_s, self.dies = name, after_s, build_s, dies
        self.loses_after_s = loses_after_s
        self.spawned_at, self.was_cancelled = clock.now(), False

    def __str__(self) -> str:
        return self.name

    async def until_placed(self) -> None:
        try:
            await asyncio.sleep(self.after_s + self.build_s)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        if self.dies:
            raise WorkerDiedError(f"{self.name}: its process died")

    def has_place(self) -> bool:
        return self.after_s <= clock.now() - self.spawned_at < self.loses_after_s


def played(story: Callable[[World, Nodes], Coroutine[Any, Any, None]]) -> dict[str, float]:
    """Play `story` with 1,000 s of patience; returns the metrics."""

    async def main() -> dict[str, float]:
        world = World()
        nodes = Nodes(max_wait_s=1000.0, history=RunHistory(), look=world.look, has_place=has_place)
        async with nodes.watched():
            await story(world, nodes)
        return nodes.metrics()

    return run_in_virtual_time(main())


def has_place(worker: Any) -> bool:
    return worker.has_place()


def told_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of the module only: other code in this process may log lag, as the time is virtual."""
    return [record.message for record in caplog.records if record.name == module.__name__]


def place(nodes: Nodes, *workers: Waiting) -> Coroutine[Any, Any, None]:
    handles: list[Any] = list(workers)
    return nodes.until_placed(handles, needs="CPU 2")


def test_nodes_that_leave_and_join_are_logged_and_those_that_left_are_counted(caplog: pytest.LogCaptureFixture):
    async def story(world: World, nodes: Nodes) -> None:
        world.nodes = {"a": HEAD}
        await asyncio.sleep(10)
        world.nodes = RayError("no answer")
        await asyncio.sleep(10)
        world.nodes = {"a": HEAD, "b again": OTHER}
        await asyncio.sleep(10)

    caplog.set_level(logging.INFO)
    assert played(story)["cluster/nodes_lost"] == 1
    assert [message for message in told_in(caplog) if message.startswith("node ")] == [
        "node 10.0.0.2: left, with CPU 4; 1 nodes now",
        "node 10.0.0.2: joined, with CPU 4; 2 nodes now",
    ]


def test_a_wait_for_resources_is_logged_repeatedly_with_what_is_available(caplog: pytest.LogCaptureFixture):
    async def story(world: World, nodes: Nodes) -> None:
        await place(nodes, Waiting("actor 0", 1), Waiting("actor 1", 200))

    played(story)
    messages = told_in(caplog)
    assert len(messages) == 4, "after 15, 75, 135 and 195 s"
    assert messages[1] == (
        "`actor 1`: no room in 75 s. Each takes CPU 2, and the nodes are: 10.0.0.1 (has CPU 4, GPU 8; free CPU 1); 10.0.0.2 "
        "(has CPU 4; free CPU 4). Waiting for another 925 s; a node joins by `ray start --address=...`"
    )


def test_a_process_that_has_a_place_at_once_is_not_told(caplog: pytest.LogCaptureFixture):
    async def story(world: World, nodes: Nodes) -> None:
        await place(nodes, Waiting("actor 0", 1), Waiting("actor 1", 2))

    played(story)
    assert not told_in(caplog)


def test_a_slow_start_is_no_wait_for_resources(caplog: pytest.LogCaptureFixture):
    async def story(world: World, nodes: Nodes) -> None:
        await place(nodes, Waiting("actor 0", 1, build_s=1200), Waiting("actor 1", 1))

    played(story)
    assert not told_in(caplog)


def test_who_has_room_and_is_never_built_is_not_said_to_lack_it():
    async def story(world: World, nodes: Nodes) -> None:
        with pytest.raises(NotBuiltError, match=r"`actor 0`: there is room, but after 1800 s .* It seems to hang"):
            await place(nodes, Waiting("actor 0", 30, build_s=9999))

    played(story)


def test_that_ray_does_not_always_say_where_a_process_is_keeps_no_class_from_being_given_up():
    class Unsaid(Waiting):
        def has_place(self) -> bool:
            if clock.now() - self.spawned_at > 60 and clock.now() % 300 < 100:
                raise RayError("no answer")
            return super().has_place()

    async def story(world: World, nodes: Nodes) -> None:
        with pytest.raises(NotBuiltError, match=r"`actor 0`: there is room, but after 1\d\d\d s .* It seems to hang"):
            await place(nodes, Unsaid("actor 0", 1, build_s=9999))

    played(story)


def test_a_process_whose_node_leaves_during_its_start_waits_for_resources_again():
    async def story(world: World, nodes: Nodes) -> None:
        with pytest.raises(InsufficientResourcesError, match=r"`actor 0`: no room in 1000 s"):
            await place(nodes, Waiting("actor 0", 1, build_s=9999, loses_after_s=100))
        assert clock.now() == pytest.approx(1100, abs=2 * LOOK_S)

    played(story)


def test_who_finds_no_room_for_too_long_ends_the_wait_with_the_reason():
    async def story(world: World, nodes: Nodes) -> None:
        world.nodes = RayError("no answer")
        with pytest.raises(
            InsufficientResourcesError, match=r"`actor 1`: no room in 1000 s.*no answer.*`cluster.max_wait_s`"
        ):
            await place(nodes, Waiting("actor 0", 1), Waiting("actor 1", 2000))

    played(story)


def test_the_end_of_a_wait_is_logged_before_the_wait_returns():
    async def story(world: World, nodes: Nodes) -> None:
        worker = Waiting("actor 0", 2000)
        with pytest.raises(InsufficientResourcesError):
            await place(nodes, worker)
        assert worker.was_cancelled, "later, Ray may be gone"

    played(story)


def test_nodes_lost_are_counted_through_all_stages_of_a_run():
    history, world = RunHistory(), World()

    async def stage(left: Mapping[str, Node]) -> float:
        nodes = Nodes(max_wait_s=1000.0, history=history, look=world.look)
        world.nodes = {"a": HEAD, "b": OTHER}
        async with nodes.watched():
            world.nodes = left
            await asyncio.sleep(10)
        return nodes.metrics()["cluster/nodes_lost"]

    async def main() -> list[float]:
        return [await stage({"a": HEAD}), await stage({"b": OTHER})]

    assert run_in_virtual_time(main()) == [1, 2]


def test_a_node_that_leaves_between_two_starts_is_counted_and_a_restarted_ray_has_lost_none():
    history, world = RunHistory(), World()

    async def start(nodes_now: Mapping[str, Node]) -> float:
        world.nodes = nodes_now
        nodes = Nodes(max_wait_s=1000.0, history=history, look=world.look)
        async with nodes.watched():
            return nodes.metrics()["cluster/nodes_lost"]

    async def main() -> list[float]:
        return [await start(dict.fromkeys(names, HEAD)) for names in ("ab", "bc", "bc", "de")]

    assert run_in_virtual_time(main()) == [0, 1, 1, 1]


def test_who_dies_at_its_place_is_not_waited_for():
    async def story(world: World, nodes: Nodes) -> None:
        with pytest.raises(WorkerDiedError, match="actor 0"):
            await place(nodes, Waiting("actor 0", 20, dies=True), Waiting("actor 1", 2000))

    played(story)
