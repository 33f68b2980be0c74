import asyncio
import random
from typing import Any

import pytest

from agentrl import clock
from agentrl.agent_loop.scheduling.admission import Admission
from agentrl.agent_loop.scheduling.priority_queue import Place
from agentrl.errors import ConfigError, EngineError
from agentrl.simulation.virtual_time import run_in_virtual_time


def make_admission(*kv_tokens: int, most: int = 1000, policy: str = "reserve_max", copies: int = 1) -> Admission:
    limits = {"max_trajectories": most, "max_response_tokens": 100, "num_copies": copies}
    return Admission(kv_tokens, policy=policy, **limits)  # type: ignore[arg-type]


async def enter_all(admission: Admission, names: list[str]) -> dict[str, asyncio.Task[Place]]:
    tasks = {name: asyncio.create_task(admission.enter(name.split("/")[0], num_prompt_tokens=10)) for name in names}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def num_running(admission: Admission) -> int:
    return sum(room.num_trajectories for room in admission._rooms)


def placed(tasks: dict[str, asyncio.Task[Place]]) -> set[str]:
    return {name for name, task in tasks.items() if task.done()}


async def test_places_spread_over_the_engines_and_stay_within_their_memory():
    admission = make_admission(330, 330)
    tasks = await enter_all(admission, [f"p{n}" for n in range(10)])
    assert placed(tasks) == {f"p{n}" for n in range(6)}, "three of 110 tokens on each"
    assert [tasks[f"p{n}"].result().engine for n in range(4)] == [0, 1, 0, 1]
    admission.leave(tasks["p1"].result())
    await asyncio.sleep(0)
    assert tasks["p6"].result().engine == 1
    assert placed(tasks) == {f"p{n}" for n in range(7)}


async def test_what_a_trajectory_holds_is_counted_in_whole_blocks_of_the_memory():
    limits: dict[str, Any] = {"max_trajectories": 64, "max_response_tokens": 200}
    admission = Admission([40 * 128], policy="reserve_max", block_tokens=128, **limits)
    tasks = [asyncio.create_task(admission.enter(f"p{n}", num_prompt_tokens=200)) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(task.done() for task in tasks) == 10, (
        "four blocks each, though 12 times 400 tokens are less than there are"
    )
    with pytest.raises(ConfigError, match=r"takes up to 5248, .* holds 5120"):
        admission.refuse_too_long(40 * 128 - 199)


async def test_an_engine_has_a_largest_number_of_trajectories_whatever_its_memory():
    tasks = await enter_all(make_admission(0, 0, most=2), [f"p{n}" for n in range(9)])
    assert len(placed(tasks)) == 4


async def test_the_copies_of_an_engine_are_not_one_memory():
    admission = make_admission(380, 380, copies=2)
    tasks = await enter_all(admission, [f"p{n}" for n in range(9)])
    assert [(tasks[f"p{n}"].result().engine, tasks[f"p{n}"].result().copy) for n in range(4)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert len(placed(tasks)) == 4, "of 110 tokens three would fit one memory of 380, and one fits each of two halves"
    admission.leave(tasks["p2"].result())
    await asyncio.sleep(0)
    assert (tasks["p4"].result().engine, tasks["p4"].result().copy) == (1, 0)
    with pytest.raises(ConfigError, match="takes up to 191, and the KV memory"):
        admission.refuse_too_long(91)


async def test_the_copies_of_an_engine_are_closed_and_limited_together():
    admission = make_admission(0, most=3, copies=2)
    tasks = await enter_all(admission, [f"p{n}" for n in range(5)])
    assert [tasks[f"p{n}"].result().copy for n in range(3)] == [0, 1, 0]
    assert len(placed(tasks)) == 3
    admission.close(0)
    for n in (0, 2, 1):
        admission.leave(tasks[f"p{n}"].result())
    await asyncio.sleep(0)
    assert len(placed(tasks)) == 3
    admission.reopen(0, kv_tokens=0)
    await asyncio.sleep(0)
    assert [tasks[f"p{n}"].result().copy for n in (3, 4)] == [0, 1]


async def test_nobody_enters_an_engine_that_is_closed_and_those_who_wait_do_when_it_opens():
    admission = make_admission(330, 330)
    admission.close(0)
    tasks = await enter_all(admission, [f"p{n}" for n in range(5)])
    assert {tasks[name].result().engine for name in placed(tasks)} == {1}
    assert len(placed(tasks)) == 3
    admission.reopen(0, kv_tokens=330)
    await asyncio.sleep(0)
    assert [tasks[f"p{n}"].result().engine for n in (3, 4)] == [0, 0]


async def test_places_of_a_closed_engine_are_kept_until_they_are_left():
    admission = make_admission(330)
    tasks = await enter_all(admission, [f"p{n}" for n in range(4)])
    admission.close(0)
    admission.leave(tasks["p0"].result())
    await asyncio.sleep(0)
    assert not tasks["p3"].done()
    admission.reopen(0, kv_tokens=330)
    await asyncio.sleep(0)
    assert tasks["p3"].done()
    assert num_running(admission) == 3


async def test_an_engine_that_opens_again_is_filled_as_far_as_its_memory_goes_now():
    admission = make_admission(330)
    admission.close(0)
    tasks = await enter_all(admission, [f"p{n}" for n in range(5)])
    admission.reopen(0, kv_tokens=220)
    await asyncio.sleep(0)
    assert placed(tasks) == {"p0", "p1"}
    admission.reopen(0, kv_tokens=440)
    await asyncio.sleep(0)
    assert placed(tasks) == {"p0", "p1", "p2", "p3"}


async def test_if_the_longest_prompt_fits_no_engine_any_more_every_waiter_fails():
    admission = make_admission(130, 130)
    admission.refuse_too_long(30)
    tasks = await enter_all(admission, ["p0", "p1", "p2"])
    admission.close(0)
    admission.reopen(0, kv_tokens=120)
    await asyncio.sleep(0)
    assert placed(tasks) == {"p0", "p1"}, "the other engine has the memory"
    admission.close(1)
    admission.reopen(1, kv_tokens=120)
    with pytest.raises(ConfigError, match=r"takes up to 130, .* holds 120"):
        await tasks["p2"]


async def test_without_any_engine_every_present_and_later_waiter_fails():
    admission = make_admission(110)
    tasks = await enter_all(admission, ["p0", "p1", "p2"])
    admission.fail(EngineError("none is left"))
    for name in ("p1", "p2"):
        with pytest.raises(EngineError, match="none is left"):
            await tasks[name]
    admission.leave(tasks["p0"].result())
    with pytest.raises(EngineError, match="none is left"):
        await admission.enter("p3", num_prompt_tokens=10)


async def test_the_longest_expected_starts_first_and_the_unknown_before_all():
    admission = make_admission(110)
    running = await enter_all(admission, ["x"])
    waiting = await enter_all(admission, ["short/1", "long/1", "new/1", "short/2", "long/2"])
    order, place = [], running["x"].result()
    admission.learn(place, "short", num_response_tokens=5, duration_s=1.0)
    admission.learn(place, "long", num_response_tokens=5, duration_s=9.0)
    while placed(waiting) != set(waiting):
        admission.leave(place)
        await asyncio.sleep(0)
        (name,) = placed(waiting) - set(order)
        order.append(name)
        place = waiting[name].result()
    assert order == ["new/1", "long/1", "long/2", "short/1", "short/2"]


async def test_who_is_needed_for_an_earlier_step_starts_first_however_short():
    admission = make_admission(110)
    running = await enter_all(admission, ["x"])
    later = asyncio.create_task(admission.enter("new", num_prompt_tokens=10, step=2))
    await asyncio.sleep(0)
    earlier = [asyncio.create_task(admission.enter("known", num_prompt_tokens=10, step=1)) for _ in range(2)]
    await asyncio.sleep(0)
    place = running["x"].result()
    admission.learn(place, "known", step=1, num_response_tokens=5, duration_s=1.0)
    for task in (*earlier, later):
        assert not task.done()
        admission.leave(place)
        await asyncio.sleep(0)
        place = task.result()


async def test_an_earlier_step_goes_first_in_the_same_prompt_too():
    """Requests of a service use the same ids, such as 0."""
    admission = make_admission(110)
    running = await enter_all(admission, ["x"])
    later, earlier = (asyncio.create_task(admission.enter("0", num_prompt_tokens=10, step=step)) for step in (2, 1))
    await asyncio.sleep(0)
    admission.leave(running["x"].result())
    await asyncio.sleep(0)
    assert earlier.done()
    assert not later.done()
    later.cancel()


async def test_one_that_gives_up_waiting_is_skipped_and_loses_no_place():
    admission = make_admission(110)
    tasks = await enter_all(admission, ["a", "b", "c"])
    tasks["b"].cancel()
    await asyncio.sleep(0)
    admission.leave(tasks["a"].result())
    await asyncio.sleep(0)
    assert tasks["c"].done()
    assert num_running(admission) == 1


async def test_who_waits_behind_one_that_gives_up_enters_at_once_where_there_is_room_for_it():
    admission = make_admission(250)
    await enter_all(admission, ["a"])
    long = asyncio.create_task(admission.enter("long", num_prompt_tokens=60))
    await asyncio.sleep(0)
    tasks = await enter_all(admission, ["short"])
    assert not tasks["short"].done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    await asyncio.sleep(0)
    assert tasks["short"].done()


async def test_a_place_that_comes_at_the_moment_of_a_cancellation_is_given_back():
    admission = make_admission(110)
    tasks = await enter_all(admission, ["a", "b", "c"])
    admission.leave(tasks["a"].result())  # b has it now, but has not run since
    tasks["b"].cancel()
    await asyncio.gather(tasks["b"], return_exceptions=True)
    await asyncio.sleep(0)
    assert tasks["c"].done()
    assert num_running(admission) == 1


def test_a_trajectory_that_fits_nowhere_is_refused_before_it_waits_for_ever():
    with pytest.raises(ConfigError, match="takes up to 130"):
        make_admission(120, 110).refuse_too_long(30)


def admit_by_expectation(*, kv_tokens: int, lengths: list[int]) -> tuple[list[int], list[float]]:
    """Play trajectories that grow by a token a second on one engine.

    Returns:
        How many ran at each second, and how many tokens they held.
    """

    async def main() -> tuple[list[int], list[float]]:
        admission = make_admission(kv_tokens, policy="expected")
        started: dict[int, float] = {}

        async def run(number: int) -> None:
            place = await admission.enter(f"p{number}", num_prompt_tokens=10)
            started[number] = clock.now()
            await asyncio.sleep(lengths[number])
            admission.learn(place, "p", num_response_tokens=lengths[number], duration_s=lengths[number])
            admission.leave(place)
            del started[number]

        tasks = [asyncio.create_task(run(number)) for number in range(len(lengths))]
        running, held = [], []
        while not all(task.done() for task in tasks):
            await asyncio.sleep(1)
            running.append(len(started))
            held.append(sum(10 + clock.now() - at for at in started.values()))
        return running, held

    return run_in_virtual_time(main())


def test_by_expectation_more_fit_than_at_their_longest_and_the_memory_still_holds_them():
    rng = random.Random(0)
    lengths = [max(1, min(100, round(rng.lognormvariate(3, 1)))) for _ in range(2000)]
    running, held = admit_by_expectation(kv_tokens=4000, lengths=lengths)
    assert running[0] == 4000 // 110, "nothing is known"
    assert sum(running[60:200]) / 140 > 2.3 * 4000 / 110
    assert sum(held[60:200]) / 140 > 0.8 * 4000
    assert max(held) <= 4000


def test_where_all_get_as_long_as_they_may_expectation_lets_in_no_more_than_reservation():
    running, held = admit_by_expectation(kv_tokens=4000, lengths=[100] * 300)
    assert max(running[:99]) == 4000 // 110
    assert max(held) <= 4000
