"""References: `generate` for greedy tokens, a float32 forward pass for log-probabilities and distributions."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Completion, FinishReason
from tests.engine.engine_driver import ask

Start = Callable[..., Awaitable[TransformersEngine]]
Save = Callable[..., str]


def random_prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(64) for _ in range(length)]


def greedy_reference(folder: str, prompt: list[int], max_tokens: int) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    return output[0, len(prompt) :].tolist()


def assert_logprobs_are_exact(
    folder: str, prompt: list[int], completion: Completion, temperature: float = 1.0, atol: float = 1e-5
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.tensor(completion.token_ids)[:, None]
    expected = (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
async def test_greedy_tokens_equal_generate(save_model: Save, start_engine: Start, family: str) -> None:
    folder = save_model(family)
    engine = await start_engine(folder)
    prompt = random_prompt(0, 30)
    completion = await ask(engine, prompt, 40, temperature=0.0)
    assert completion.token_ids == greedy_reference(folder, prompt, 40)
    assert completion.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_equal_a_separate_forward_pass(
    save_model: Save, start_engine: Start, temperature: float
) -> None:
    folder = save_model()
    engine = await start_engine(folder)
    prompts = [random_prompt(i, 3 + 11 * i) for i in range(6)]
    completions = await asyncio.gather(
        *(ask(engine, p, 30, name=str(i), seed=i, temperature=temperature) for i, p in enumerate(prompts))
    )
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_logprobs_are_exact(folder, prompt, completion, temperature)


async def test_requests_that_join_and_leave_do_not_change_each_other(save_model: Save, start_engine: Start) -> None:
    folder = save_model()
    engine = await start_engine(folder, max_concurrent_trajectories=5)
    rng = random.Random(2)
    requests = [(random_prompt(i, rng.randint(1, 90)), rng.randint(1, 60), rng.random() * 0.2) for i in range(24)]

    async def later(index: int) -> list[int]:
        prompt, max_tokens, delay_s = requests[index]
        await asyncio.sleep(delay_s)
        return (await ask(engine, prompt, max_tokens, name=str(index), temperature=0.0)).token_ids

    replies = await asyncio.gather(*map(later, range(len(requests))))
    for (prompt, max_tokens, _), reply in zip(requests, replies, strict=True):
        assert reply == greedy_reference(folder, prompt, max_tokens)


async def test_a_seed_gives_the_same_tokens_alone_and_in_company(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    prompt, seed = random_prompt(3, 20), 2**70 + 5
    alone = await ask(engine, prompt, seed=seed)
    company = (ask(engine, random_prompt(i, 30), name=str(i), seed=i) for i in range(12))
    together, *_ = await asyncio.gather(ask(engine, prompt, seed=seed), *company)
    other = await ask(engine, prompt, seed=6)
    assert together.token_ids == alone.token_ids != other.token_ids


async def test_two_requests_without_a_seed_differ(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    first, second = await asyncio.gather(ask(engine, [1, 2], name="a"), ask(engine, [1, 2], name="b"))
    assert first.token_ids != second.token_ids


async def test_sampled_tokens_follow_the_softmax(save_model: Save, start_engine: Start) -> None:
    """Pearson's chi-square over 4,000 seeds: with k degrees of freedom its mean is k, its standard deviation sqrt(2 k)."""
    folder = save_model()
    engine = await start_engine(folder, max_concurrent_trajectories=64)
    prompt, num_samples = random_prompt(4, 10), 4000
    replies = await asyncio.gather(*(ask(engine, prompt, 1, name=str(i), seed=i) for i in range(num_samples)))
    counts = torch.bincount(torch.tensor([reply.token_ids[0] for reply in replies]), minlength=64).double()
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1) * num_samples
    common = expected >= 5  # the usual condition of the test; the rest is one class
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    degrees = len(expected) - 1
    assert degrees >= 5
    assert ((observed - expected) ** 2 / expected).sum() < degrees + 3 * (2 * degrees) ** 0.5


async def test_a_stop_token_ends_the_completion_and_is_part_of_it(save_model: Save, start_engine: Start) -> None:
    folder = save_model()
    engine = await start_engine(folder)
    prompt = random_prompt(5, 8)
    free = greedy_reference(folder, prompt, 20)
    completion = await ask(engine, prompt, 20, temperature=0.0, stop_token_ids=(free[7],))
    assert completion.token_ids == free[: free.index(free[7]) + 1]
    assert completion.finish_reason is FinishReason.STOP


async def test_only_the_tokens_that_a_request_names_stop_it(save_model: Save, start_engine: Start) -> None:
    prompt = random_prompt(5, 8)
    free = greedy_reference(save_model(), prompt, 20)
    engine = await start_engine(save_model(eos=[63, free[7]]))
    completion = await ask(engine, prompt, 20, temperature=0.0)
    assert completion.token_ids == free
    assert completion.finish_reason is FinishReason.LENGTH


async def test_the_next_turn_computes_only_what_is_new(save_model: Save, start_engine: Start) -> None:
    folder = save_model()
    engine = await start_engine(folder)
    first = random_prompt(6, 50)
    reply = await ask(engine, first, 20, name="t1", seed=1)
    second = first + reply.token_ids + random_prompt(7, 10)
    before = await engine.stats()
    cached = await ask(engine, second, 20, name="t2", seed=2)
    after = await engine.stats()
    # The last sampled token was never fed back, so it comes with the 10 observation tokens.
    assert after.num_cached_tokens - before.num_cached_tokens == 69
    assert after.num_prefill_tokens - before.num_prefill_tokens == 11
    assert_logprobs_are_exact(folder, second, cached)


async def test_samples_of_one_prompt_compute_it_once(save_model: Save, start_engine: Start) -> None:
    folder = save_model()
    engine = await start_engine(folder)
    prompt = random_prompt(7, 100)
    replies = await asyncio.gather(*(ask(engine, prompt, 10, name=str(i), seed=i) for i in range(8)))
    assert (await engine.stats()).num_prefill_tokens == 100 + 7
    for reply in replies:
        assert_logprobs_are_exact(folder, prompt, reply)


async def test_a_prompt_longer_than_one_prefill_step_is_computed_in_several(
    save_model: Save, start_engine: Start
) -> None:
    folder = save_model(max_positions=4096)
    engine = await start_engine(folder, max_tokens=3756)
    prompts = random_prompt(8, 3000), random_prompt(9, 10)
    replies = await asyncio.gather(*(ask(engine, p, 10, name=str(len(p)), temperature=0.0) for p in prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        assert_logprobs_are_exact(folder, prompt, reply, atol=1e-4)


async def test_the_end_of_the_context_ends_the_completion(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(), max_tokens=50)
    completion = await ask(engine, [1] * 45, 100)
    assert len(completion.token_ids) == len(completion.logprobs) == 5
    assert completion.finish_reason is FinishReason.LENGTH


async def test_the_context_never_exceeds_the_models_positions(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(max_positions=64))
    assert (await engine.stats()).kv_tokens_capacity == 8 * 64
    assert len((await ask(engine, [1] * 60, 100)).token_ids) == 4


@pytest.mark.parametrize(
    ("prompt", "message"), [([1] * 50, "50 tokens .* context of 50"), ([], "0 tokens"), ([1, 64], "vocabulary of 64")]
)
async def test_a_prompt_that_cannot_be_answered_is_an_engine_error(
    save_model: Save, start_engine: Start, prompt: list[int], message: str
) -> None:
    engine = await start_engine(save_model(), max_tokens=50)
    with pytest.raises(EngineError, match=message):
        await ask(engine, prompt)


async def test_a_budget_of_no_tokens_is_an_engine_error(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    with pytest.raises(EngineError, match="`max_tokens` is 0"):
        await ask(engine, [1], 0)


async def test_a_missing_model_fails_the_start(start_engine: Start) -> None:
    with pytest.raises(ConfigError, match="no-such-folder"):
        await start_engine("./no-such-folder")
