"""Times are checked against sums done by hand: a step takes 10 ms, 1 ms per running request, 0.1 ms per prefilled token."""

import pytest

from agentrl.config.schema.simulation import SimulatedEngineSection
from agentrl.simulation.batch_model import BatchSimulation, SimulatedRequest


def make_batch(*, kv_tokens: int = 10_000, max_running: int = 100, max_batched_tokens: int = 1000) -> BatchSimulation:
    return BatchSimulation(
        SimulatedEngineSection(
            step_ms=10,
            step_ms_per_request=1,
            step_ms_per_prefill_token=0.1,
            kv_tokens=kv_tokens,
            max_running=max_running,
            max_batched_tokens=max_batched_tokens,
        )
    )


def request(
    name: str, *, prompt: int = 100, sample: int = 10, opening: str = "", num_opening: int = 100
) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=name,
        opening=opening or f"opening of {name}",
        num_opening_tokens=num_opening,
        trajectory=name,
        num_prompt_tokens=prompt,
        num_to_sample=sample,
    )


def run_to_the_end(batch: BatchSimulation) -> dict[str, float]:
    """Return when each request ended."""
    ends: dict[str, float] = {}
    while (at := batch.next_event_at) is not None:
        for ended in batch.advance(at):
            ends[ended.request_id] = at
    return ends


def test_a_request_alone_takes_its_prefill_and_a_step_per_token():
    batch = make_batch()
    batch.add(request("a", prompt=100, sample=10), 0.0)
    # The first step computes the prompt and samples the first token.
    assert run_to_the_end(batch) == {"a": pytest.approx((10 + 1 + 100 * 0.1) * 1e-3 + 9 * 11e-3)}
    assert (batch.counts.generated, batch.counts.prefilled, batch.counts.recomputed) == (10, 100, 0)


def test_requests_that_run_together_share_their_steps():
    batch = make_batch()
    for name in "abcd":
        batch.add(request(name, sample=5), 0.0)
    # The first was alone in its first step, for nobody else was there when that began.
    first, together = (10 + 1 + 10) * 1e-3, (10 + 4 + 3 * 10) * 1e-3
    ends = run_to_the_end(batch)
    assert ends["a"] == pytest.approx(first + together + 3 * 14e-3)
    assert ends["b"] == pytest.approx(ends["a"] + 13e-3)
    assert ends["b"] == ends["c"] == ends["d"]


def test_a_long_prompt_takes_several_steps_while_others_go_on():
    batch = make_batch(max_batched_tokens=100)
    batch.add(request("a", prompt=250, sample=1), 0.0)
    assert run_to_the_end(batch) == {"a": pytest.approx(3 * 11e-3 + 250 * 0.1e-3)}


def test_a_request_that_comes_in_the_middle_waits_for_the_end_of_a_step_only():
    batch = make_batch()
    batch.add(request("a", sample=1000), 0.0)
    batch.advance(batch.next_event_at or 0.0)
    began = 21e-3
    batch.add(request("b", sample=1), began + 2.5 * 11e-3)
    assert batch.next_event_at == pytest.approx(began + 3 * 11e-3)
    assert run_to_the_end(batch)["b"] == pytest.approx(began + 3 * 11e-3 + (12 + 10) * 1e-3)


def test_no_more_run_than_have_a_place():
    batch = make_batch(max_running=2)
    for name in "abc":
        batch.add(request(name, sample=3), 0.0)
    ends = run_to_the_end(batch)
    assert ends["a"] < ends["b"] < ends["c"]
    assert batch.counts.generated == 9


def test_a_prompt_that_does_not_fit_waits():
    batch = make_batch(kv_tokens=150)
    batch.add(request("a", prompt=100, sample=20), 0.0)
    batch.add(request("b", prompt=100, sample=20), 0.0)
    assert (len(batch.running), len(batch.waiting)) == (1, 1)
    ends = run_to_the_end(batch)
    assert ends["b"] > ends["a"]
    assert batch.counts.recomputed == 0


def test_the_last_one_is_preempted_where_the_memory_is_full_and_all_it_had_is_computed_again():
    batch = make_batch(kv_tokens=300)
    batch.add(request("a", prompt=100, sample=150), 0.0)
    batch.add(request("b", prompt=100, sample=60), 0.0)
    ends = run_to_the_end(batch)
    assert ends["b"] > ends["a"], "it came later, and was preempted"
    assert batch.counts.preemptions == 1
    # Both hold 100 tokens and what they sample: they are 300 when each has sampled about fifty.
    assert 145 <= batch.counts.recomputed <= 150
    assert batch.counts.generated == 210
    assert batch.counts.prefilled == 200 + batch.counts.recomputed


def test_memory_never_holds_more_than_there_is():
    batch = make_batch(kv_tokens=1000)
    for number in range(20):
        batch.add(request(f"{number}", prompt=50 + number, sample=20 + 13 * number), 0.001 * number)
    while (at := batch.next_event_at) is not None:
        batch.advance(at)
        assert batch.used_tokens + batch._cached_tokens <= 1000
    assert batch.counts.generated == sum(20 + 13 * number for number in range(20))


def test_the_next_turn_finds_what_the_last_one_left():
    batch = make_batch()
    batch.add(request("a", prompt=100, sample=50), 0.0)
    run_to_the_end(batch)
    batch.add(request("a", prompt=180, sample=5), 10.0)
    run_to_the_end(batch)
    # The last sampled token of the first turn has no keys yet, and is computed with the 30 that came after.
    assert batch.counts.cached == 149
    assert batch.counts.prefilled == 100 + 31


def test_others_of_the_group_find_the_prompt_that_they_share():
    batch = make_batch()
    batch.add(request("a", opening="p"), 0.0)
    run_to_the_end(batch)
    batch.add(request("b", opening="p"), 10.0)
    run_to_the_end(batch)
    assert batch.counts.cached == 99, "the last token is computed in any case"


def test_what_was_left_is_dropped_from_its_end_when_others_need_the_memory():
    batch = make_batch(kv_tokens=400)
    batch.add(request("a", prompt=100, sample=100), 0.0)
    run_to_the_end(batch)
    batch.add(request("b", prompt=100, sample=150, num_opening=100), 10.0)
    run_to_the_end(batch)
    repeated = request("a", prompt=250, sample=1)
    repeated.num_once_computed = 199
    batch.add(repeated, 20.0)
    run_to_the_end(batch)
    # b came to hold 249 of 400 tokens: 151 of the 199 of a were left.
    assert batch.counts.cached == 151
    assert batch.counts.recomputed == 199 - 151, "what a had computed, and lost between its turns"


def test_new_weights_have_what_runs_computed_again_and_mark_what_is_sampled_from_then_on():
    batch = make_batch()
    first = request("a", sample=10)
    batch.add(first, 0.0)
    batch.advance(21e-3)
    now = 21e-3 + 4.5 * 11e-3  # five tokens
    batch.renew_weights(now, version=1)
    # The prompt and all but the last of five tokens, with which the sixth is sampled; then four steps of a token each.
    num_recomputed = 100 + 5 - 1
    assert run_to_the_end(batch) == {"a": pytest.approx(now + (10 + 1 + num_recomputed * 0.1) * 1e-3 + 4 * 11e-3)}
    assert (batch.counts.prefilled, batch.counts.recomputed) == (100 + num_recomputed, num_recomputed)
    assert first.version_spans == [(0, 0), (5, 1)]
    assert first.num_sampled == 10
    assert batch.used_tokens == 0


def test_new_weights_forget_what_ended_turns_left():
    batch = make_batch()
    batch.add(request("a", prompt=100, sample=10, opening="x"), 0.0)
    end = run_to_the_end(batch)["a"]
    batch.renew_weights(end, version=1)
    batch.add(request("a", prompt=200, sample=10, opening="x"), end)
    run_to_the_end(batch)
    assert (batch.counts.cached, batch.counts.prefilled) == (0, 300)


def test_a_request_that_is_taken_out_keeps_its_full_steps_and_frees_its_place():
    batch = make_batch(max_running=1)
    first = request("a", sample=1000)
    batch.add(first, 0.0)
    batch.advance(21e-3)
    batch.remove(first, 21e-3 + 2.5 * 11e-3)
    assert first.num_sampled == 3
    assert not batch.running
    batch.add(first, 1.0)
    batch.add(request("b", sample=1), 1.0)
    batch.remove(first, 1.0)
    assert [other.request_id for other in batch.running] == ["b"]
    assert "b" in run_to_the_end(batch)


@pytest.mark.parametrize("is_prefilling", [True, False])
def test_the_others_of_a_step_end_as_they_would_have_where_one_is_taken_out_in_it(is_prefilling: bool):
    batch, gone = make_batch(), request("gone", sample=10)
    batch.add(gone, 0.0)
    batch.add(request("stays", sample=10), 0.0)
    now = 0.0
    while not (is_prefilling or gone.num_sampled):
        assert batch.next_event_at is not None
        batch.advance(now := batch.next_event_at)
    batch.remove(gone, now + 1e-3)
    assert set(run_to_the_end(batch)) == {"stays"}
    assert batch.used_tokens == 0
