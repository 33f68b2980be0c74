"""The scheduler on the test's own thread, tick by tick. Reference: a float32 forward pass."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection
from agentrl.engine.embedded.model import LanguageModel
from agentrl.engine.embedded.scheduler import MAX_PREFILL_TOKENS_PER_STEP, BatchScheduler, Request
from agentrl.engine.stop_strings import StopStrings
from agentrl.types import SamplingParams
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher

Save = Callable[..., str]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def scheduler_on(folder: str, *, num_rows: int = 8, max_tokens: int = 256) -> BatchScheduler:
    model = LanguageModel(ModelSection(path=folder), num_rows=num_rows, max_tokens=max_tokens)
    return BatchScheduler(model, StopStrings(lambda: str))


def submit(scheduler: BatchScheduler, prompt: np.ndarray, max_tokens: int) -> Request:
    request = Request(
        prompt_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        uniforms=[0.5] * max_tokens,
    )
    scheduler.waiting.append(request)
    return request


def random_prompt(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, length, dtype=np.int32)


def assert_greedy(folder: str, request: Request) -> None:
    """Every token is the likeliest after what stands before it, and its log-probability is right."""
    completion = request.future.result(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[*request.prompt_ids.tolist(), *completion.token_ids]])
    logprobs = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
    assert completion.token_ids == logprobs.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(completion.logprobs), logprobs.max(-1).values, atol=1e-4, rtol=0)


def test_a_request_that_has_sampled_nothing_yet_is_computed_with_the_new_weights(save_model: Save) -> None:
    old, new = save_model(seed=0, max_positions=8192), save_model(seed=1, max_positions=8192)
    scheduler = scheduler_on(old, max_tokens=4096)
    request = submit(scheduler, random_prompt(0, MAX_PREFILL_TOKENS_PER_STEP + 500), 5)
    scheduler.step()
    assert scheduler.stats().kv_tokens_used == MAX_PREFILL_TOKENS_PER_STEP
    publisher = SharedMemoryPublisher()
    weights = AutoModelForCausalLM.from_pretrained(new).state_dict()
    scheduler.load_weights(publisher.publish(weights.items()), 3)
    publisher.close()
    assert scheduler.stats().kv_tokens_used == 0
    while not request.future.done():
        scheduler.step()
    assert request.version_spans == [(0, 3)]
    assert_greedy(new, request)


def test_rows_far_apart_stay_exact_as_their_neighbours_leave(save_model: Save) -> None:
    folder = save_model()
    scheduler = scheduler_on(folder, num_rows=32)
    requests = [submit(scheduler, random_prompt(i, 15 + i), 3 if i % 9 else 30) for i in range(32)]
    while not all(r.future.done() for r in requests):
        scheduler.step()
    for request in requests:
        assert_greedy(folder, request)


def test_prompts_with_a_common_beginning_compute_it_once_and_stay_exact(save_model: Save) -> None:
    folder = save_model()
    scheduler = scheduler_on(folder)
    begin = random_prompt(0, 60)
    requests = [submit(scheduler, np.concatenate([begin, random_prompt(1 + i, 5 + i)]), 10) for i in range(6)]
    while not all(r.future.done() for r in requests):
        scheduler.step()
    assert scheduler.stats().num_prefill_tokens == 60 + sum(5 + i for i in range(6))
    for request in requests:
        assert_greedy(folder, request)


def test_every_parked_row_is_found_by_its_next_turn(save_model: Save) -> None:
    folder = save_model()
    scheduler = scheduler_on(folder, num_rows=16)
    first = [submit(scheduler, random_prompt(i, 20), 3 if i < 12 else 12) for i in range(16)]
    while not all(r.future.done() for r in first):
        scheduler.step()
    before = scheduler.stats().num_cached_tokens
    second = []
    for i, request in enumerate(first):
        turn = [*request.prompt_ids, *request.token_ids, *random_prompt(50 + i, 4)]
        second.append(submit(scheduler, np.asarray(turn, dtype=np.int32), 5))
    while not all(r.future.done() for r in second):
        scheduler.step()
    assert scheduler.stats().num_cached_tokens - before == sum(len(r.prompt_ids) - 5 for r in second)
    for request in second:
        assert_greedy(folder, request)


def test_a_completion_tells_how_long_it_waited_for_a_row_and_not_how_long_it_ran(save_model: Save) -> None:
    scheduler = scheduler_on(save_model(seed=0), num_rows=1)
    first, second = (submit(scheduler, random_prompt(seed, 8), 3) for seed in range(2))
    first.arrived_at -= 5.0
    while not second.future.done():
        scheduler.step()
    # What it runs counts for neither of them, however slow the machine is.
    assert first.future.result(0).queue_s == pytest.approx(first.started_at - first.arrived_at)
    assert second.future.result(0).queue_s == pytest.approx(second.started_at - second.arrived_at)
    assert first.started_at - first.arrived_at > 5.0
