import asyncio
import math
import random

import pytest

from agentrl.agent_loop.admission import Admission, Place
from agentrl.agent_loop.response_lengths import ResponseLengths
from agentrl.errors import ConfigError


def make_admission(*kv_tokens: int, most: int = 1000, policy: str = "reserve_max") -> Admission:
    return Admission(kv_tokens, max_trajectories=most, max_response_tokens=100, policy=policy)  # type: ignore[arg-type]


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


async def test_an_engine_has_a_largest_number_of_trajectories_whatever_its_memory():
    tasks = await enter_all(make_admission(0, 0, most=2), [f"p{n}" for n in range(9)])
    assert len(placed(tasks)) == 4


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


async def test_one_that_gives_up_waiting_is_skipped_and_loses_no_place():
    admission = make_admission(110)
    tasks = await enter_all(admission, ["a", "b", "c"])
    tasks["b"].cancel()
    await asyncio.sleep(0)
    admission.leave(tasks["a"].result())
    await asyncio.sleep(0)
    assert tasks["c"].done()
    assert num_running(admission) == 1


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


async def test_by_expectation_more_fit_than_at_their_longest_once_lengths_are_known():
    admission = make_admission(4000, policy="expected")
    tasks = await enter_all(admission, [f"p{n}" for n in range(300)])
    assert len(placed(tasks)) == 4000 // 110
    for name in placed(tasks):
        place = tasks[name].result()
        admission.learn(place, name, num_response_tokens=20, duration_s=1.0)
        admission.leave(place)
        await asyncio.sleep(0)
    # Ten tokens of prompt and twenty of response each; some are kept free for those that still run, and for chance.
    assert 0.6 * 4000 / 30 < num_running(admission) <= 4000 / 30


def learnt(started: list[int], *, finished: int) -> ResponseLengths:
    """Return what is known after `started` began together, and the shortest `finished` of them have ended."""
    lengths = ResponseLengths(1000)
    for _ in started:
        lengths.start()
    for number in sorted(range(len(started)), key=started.__getitem__)[:finished]:
        lengths.finish(number, started[number])
    return lengths


def test_the_short_ones_that_finish_first_are_not_taken_for_all():
    drawn = [10] * 500 + [900] * 500
    random.Random(0).shuffle(drawn)
    half, all_of_them = learnt(drawn, finished=500).held_tokens(), learnt(drawn, finished=1000).held_tokens()
    assert half is None
    assert all_of_them is not None
    assert all_of_them[0] == pytest.approx(455, rel=0.01)
    nearly_all = learnt(drawn, finished=950).held_tokens()
    assert nearly_all is not None
    assert nearly_all[0] >= all_of_them[0], "what still runs may get as long as it is allowed to"


def test_old_lengths_are_forgotten():
    lengths = ResponseLengths(1000)
    for number in range(10_000):
        lengths.start()
        lengths.finish(number, 100 if number < 5000 else 10)
    assert lengths.held_tokens() == (pytest.approx(10), pytest.approx(100 / 12, rel=0.01))


def test_what_running_trajectories_hold_is_what_a_simulation_of_them_finds():
    rng = random.Random(0)
    drawn = [max(1, round(rng.lognormvariate(5, 1))) for _ in range(4000)]
    # One after the other in one place, looked at at random moments.
    ends = [0]
    for length in drawn:
        ends.append(ends[-1] + length)
    held, index = [], 0
    for moment in sorted(rng.randrange(ends[-1]) for _ in range(20_000)):
        while ends[index + 1] <= moment:
            index += 1
        held.append(moment - ends[index])
    mean = sum(held) / len(held)
    variance = sum((value - mean) ** 2 for value in held) / len(held)
    found = learnt(drawn, finished=4000).held_tokens()
    assert found is not None
    assert found[0] == pytest.approx(mean, rel=0.05)
    assert math.sqrt(found[1]) == pytest.approx(math.sqrt(variance), rel=0.05)
