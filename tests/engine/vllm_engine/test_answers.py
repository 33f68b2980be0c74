"""Answers of a real vLLM. References: the embedded engine, and the actor's own forward pass."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from agentrl.config.schema.run import ModelSection
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.errors import EngineError
from agentrl.models.tokenizer import text_decoder
from agentrl.types import Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask, ask_greedily, until_present
from tests.engine.vllm_engine.cases import (
    CONTEXT,
    LONG_PROMPT,
    POLICY,
    PROMPT,
    actor_logprobs,
    problems,
    rollout,
    weights_of,
)

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]

BLOCK = 128


async def test_greedy_tokens_equal_those_of_the_embedded_engine(engine: "VllmEngine", base: str) -> None:
    embedded = TransformersEngine(ModelSection(path=base), rollout(), max_tokens=CONTEXT)
    await embedded.start()
    try:
        for prompt in problems(6):
            expected = await ask_greedily(embedded, prompt, 80)
            answer = await ask_greedily(engine, prompt, 80)
            assert answer.token_ids == expected.token_ids
            assert answer.finish_reason is FinishReason.LENGTH
            torch.testing.assert_close(answer.logprobs, expected.logprobs, atol=1e-4, rtol=0)
    finally:
        await embedded.aclose()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_agree_with_the_actors(
    engine: "VllmEngine", base: str, temperature: float, record_property: Callable[[str, object], None]
) -> None:
    prompts = problems(16)
    answers = await asyncio.gather(
        *(ask(engine, p, 100, name=str(i), seed=i, temperature=temperature) for i, p in enumerate(prompts))
    )
    differences = torch.cat(
        [
            torch.tensor(answer.logprobs) - actor_logprobs(base, prompt, answer, temperature=temperature)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
    ).abs()
    mean, largest = differences.mean().item(), differences.max().item()
    print(f"|rollout - actor| at temperature {temperature}: mean {mean:.1e}, largest {largest:.1e}")
    record_property("mean_abs_difference", mean)
    assert len(differences) == 1600
    assert largest < 1e-4


async def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine: "VllmEngine") -> None:
    alone = await ask(engine, PROMPT, seed=2**70 + 5)
    company = (ask(engine, LONG_PROMPT, name=str(i), seed=i) for i in range(6))
    together, *_ = await asyncio.gather(ask(engine, PROMPT, seed=2**70 + 5), *company)
    assert together.token_ids == alone.token_ids != (await ask(engine, PROMPT, seed=6)).token_ids


async def test_seeded_prompts_of_more_tokens_than_one_step_computes(engine: "VllmEngine", base: str) -> None:
    """Prompts that vLLM cuts in parts, and whose requests have seeds, end its core on CPU."""
    prompts = [[random.Random(i).randrange(3, 1000) for _ in range(CONTEXT - 20)] for i in range(8)]
    answers = await asyncio.gather(*(ask(engine, p, 10, name=str(i), seed=i) for i, p in enumerate(prompts)))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = actor_logprobs(base, prompt, answer)
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)


async def test_two_requests_without_a_seed_differ(engine: "VllmEngine") -> None:
    first, second = await asyncio.gather(ask(engine, PROMPT, 50, name="a"), ask(engine, PROMPT, 50, name="b"))
    assert first.token_ids != second.token_ids


async def test_a_stop_token_ends_the_completion_and_is_part_of_it(engine: "VllmEngine") -> None:
    free = (await ask_greedily(engine, PROMPT, 40)).token_ids
    completion = await ask(engine, PROMPT, 40, temperature=0.0, stop_token_ids=(free[20],))
    assert completion.token_ids == free[: free.index(free[20]) + 1]
    assert completion.finish_reason is FinishReason.STOP


async def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it(engine: "VllmEngine") -> None:
    prompt, text = problems(1)[0], text_decoder(str(POLICY))
    free = (await ask_greedily(engine, prompt, 40)).token_ids
    stop = text(free[:12])[-3:]
    first = next(count for count in range(1, 13) if stop in text(free[:count]))
    params = SamplingParams(max_tokens=40, temperature=0.0, stop=(stop,))
    completion = await engine.generate(prompt, params, request_id="stop", deadline=Deadline.after(100))
    assert (completion.token_ids, completion.finish_reason) == (free[:first], FinishReason.STOP)
    assert len(completion.logprobs) == first


async def test_a_special_token_completes_a_stop_string(engine: "VllmEngine") -> None:
    prompt, text = problems(1)[0], text_decoder(str(POLICY))
    free = (await ask_greedily(engine, prompt, 80)).token_ids
    end = next(index for index, token_id in enumerate(free) if text([token_id]) == "<|im_end|>")
    params = SamplingParams(max_tokens=80, temperature=0.0, stop=("<|im_end|>",))
    completion = await engine.generate(prompt, params, request_id="special", deadline=Deadline.after(100))
    assert (completion.token_ids, completion.finish_reason) == (free[: end + 1], FinishReason.STOP)


async def test_the_next_turn_finds_its_prefix_until_the_weights_change(
    engine: "VllmEngine", changed: str, publisher: SharedMemoryPublisher
) -> None:
    start = await engine.stats()
    reply = await ask_greedily(engine, LONG_PROMPT, 100)
    second = LONG_PROMPT + reply.token_ids + [5, 6, 7]
    await ask_greedily(engine, second, 20)
    cached = await engine.stats()
    assert cached.num_cached_tokens - start.num_cached_tokens == len(second) // BLOCK * BLOCK
    assert cached.num_prefill_tokens - start.num_prefill_tokens == len(LONG_PROMPT) + len(second) % BLOCK
    await engine.load_weights(publisher.publish(weights_of(changed).items()), version=1)
    updated = await ask_greedily(engine, second, 20)
    torch.testing.assert_close(
        torch.tensor(updated.logprobs), actor_logprobs(changed, second, updated), atol=1e-4, rtol=0
    )
    assert (await engine.stats()).num_cached_tokens == cached.num_cached_tokens


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([1] * CONTEXT, f"{CONTEXT} tokens .* context of {CONTEXT}"), ([], "0 tokens"), ([1, 1024], "vocabulary of 1024")],
)
async def test_a_prompt_that_cannot_be_answered_is_an_engine_error(
    engine: "VllmEngine", prompt: list[int], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        await ask(engine, prompt)


async def test_the_end_of_the_context_ends_the_completion(engine: "VllmEngine") -> None:
    completion = await ask(engine, [5] * (CONTEXT - 5), 100)
    assert len(completion.token_ids) == len(completion.logprobs) == 5
    assert completion.finish_reason is FinishReason.LENGTH


async def test_a_request_id_in_use_is_refused(engine: "VllmEngine") -> None:
    first = asyncio.create_task(ask_greedily(engine, PROMPT, 20, name="same"))
    await until_present(engine, 1)
    with pytest.raises(EngineError, match="`same`: the id is in use"):
        await ask_greedily(engine, PROMPT, 20, name="same")
    assert len((await first).token_ids) == 20
