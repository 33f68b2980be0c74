import numpy as np
import pytest

from agentrl.agent_loop.scheduling.kv_forecast import KvForecast

MANY = 100_000
"""Trajectories, so many that chance and what is assumed at the beginning weigh nothing."""


def learnt(lengths: list[int], *, running_s: list[float] | None = None, max_tokens: int = 640) -> KvForecast:
    """Return what is known after trajectories that grew by a token a second; bins are 10 tokens wide."""
    forecast = KvForecast(max_tokens)
    for length in lengths:
        forecast.learn(length, float(length))
    forecast.renew(np.array(running_s or [], dtype=float))
    return forecast


def peak_each(forecast: KvForecast, ages_s: list[float], *, prompt_tokens: int = 0) -> float:
    """Return the peak of many trajectories, per trajectory of `ages_s`."""
    times = MANY // len(ages_s)
    return forecast.peak_tokens(np.array(ages_s * times), prompt_tokens * times) / times


def test_with_nothing_known_all_become_as_long_as_they_may():
    forecast = learnt([])
    assert forecast.peak_tokens(np.zeros(5), 50) == 5 * 640 + 50


def test_those_that_begin_together_peak_where_few_enough_have_ended():
    # A third ends after 105 tokens and the others after 405: at 400, two thirds are left, with 400 each.
    forecast = learnt([105, 405, 405] * 1000)
    assert peak_each(forecast, [0.0]) == pytest.approx(400 * 2 / 3, rel=0.03)


def test_what_is_old_already_counts_with_what_it_holds_now():
    forecast = learnt([105, 405, 405] * 1000)
    # The one that has run for 350 s goes on to 400 for certain; while the new one may end at 105.
    assert peak_each(forecast, [350.0]) == pytest.approx(400, rel=0.03)
    assert peak_each(forecast, [0.0, 350.0]) < 400 * 2 / 3 + 400, "their peaks come at different times"


def test_prompts_are_held_as_long_as_their_trajectories():
    forecast = learnt([105, 405, 405] * 1000)
    assert peak_each(forecast, [0.0], prompt_tokens=90) == pytest.approx(490 * 2 / 3, rel=0.03)


def test_the_short_ones_that_finish_first_are_not_treated_as_typical():
    half = learnt([105] * 1000, running_s=[110.0] * 1000)
    # Half of those that came as far have ended; nothing says that the others do before they must.
    assert peak_each(half, [0.0]) == pytest.approx(640 / 2, rel=0.05)
    assert peak_each(half, [115.0]) == pytest.approx(640, rel=0.05)


def test_the_first_few_that_end_are_not_treated_as_typical():
    assert peak_each(learnt([105] * 4), [0.0]) > 0.6 * 640


def test_chance_raises_the_forecast_of_few_more_than_that_of_many():
    forecast = learnt([105, 405, 405] * 1000)
    few, many = (forecast.peak_tokens(np.zeros(number), 0) / number for number in (4, 400))
    assert few > 1.3 * many


def test_old_lengths_are_forgotten():
    forecast = learnt([405] * 5000 + [105] * 5000)
    assert peak_each(forecast, [0.0]) == pytest.approx(100, rel=0.1)


def test_ages_are_turned_into_tokens_by_the_speed_of_the_last_ones():
    forecast = KvForecast(640)
    for _ in range(2000):
        forecast.learn(400, 4.0)
    forecast.renew(np.array([]))
    assert peak_each(forecast, [3.0]) == pytest.approx(400, rel=0.1)
