"""Everything that ends or holds a request of a real vLLM: abort, deadlines, cancellation; and its statistics."""

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from agentrl.types import FinishReason
from tests.engine.engine_driver import ask_greedily, until, until_generated
from tests.engine.vllm_engine.cases import (
    CONTEXT,
    PROMPT,
)

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def test_abort_gives_what_was_sampled_and_ignores_unknown_ids(engine: "VllmEngine") -> None:
    whole = await ask_greedily(engine, PROMPT, 250, name="whole")
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 400, name="a"))
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 5)
    await engine.abort("never heard of")
    await engine.abort("a")
    completion = await task
    assert completion.finish_reason is FinishReason.ABORT
    assert 5 <= len(completion.token_ids) == len(completion.logprobs) < 400
    assert completion.token_ids[:250] == whole.token_ids[: len(completion.token_ids)]
    assert completion.version_spans == ((0, 0),)


async def test_a_passed_deadline_gives_what_was_sampled(engine: "VllmEngine") -> None:
    started = time.monotonic()
    await ask_greedily(engine, PROMPT, 100)
    completion = await ask_greedily(engine, PROMPT, 470, wait_s=1.5 * (time.monotonic() - started))
    assert completion.finish_reason is FinishReason.ABORT
    assert 0 < len(completion.token_ids) == len(completion.logprobs) < 470
    assert (await ask_greedily(engine, PROMPT, 10, wait_s=0.0)).token_ids == []


async def test_cancelling_frees_the_request(engine: "VllmEngine") -> None:
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 400, name=str(i))) for i in range(8)]
    stats = await until(engine, lambda stats: stats.num_running == 8)
    assert stats.kv_tokens_used >= 8 * len(PROMPT)
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    await until(engine, lambda stats: stats.num_running == 1)
    stats = await until(engine, lambda stats: stats.kv_tokens_used <= CONTEXT)
    assert (stats.num_running, stats.num_waiting) == (1, 0)
    await engine.abort("0")
    assert (await tasks[0]).finish_reason is FinishReason.ABORT


async def test_stats_count_running_and_waiting_requests(engine: "VllmEngine") -> None:
    start = await engine.stats()
    assert (start.kv_tokens_capacity, start.kv_block_tokens) == (8 * CONTEXT, 128)
    assert (start.num_running, start.num_waiting, start.kv_tokens_used) == (0, 0, 0)
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 100, name=str(i))) for i in range(12)]
    full = await until(engine, lambda stats: stats.num_running == 8)
    assert full.num_waiting == 4
    assert 8 * len(PROMPT) <= full.kv_tokens_used <= full.kv_tokens_capacity
    await asyncio.gather(*tasks)
    end = await engine.stats()
    assert end.num_generated_tokens - start.num_generated_tokens == 12 * 100
    assert end.num_prefill_tokens - start.num_prefill_tokens == 12 * len(PROMPT)
    assert end.num_preemptions == 0, "all eight fit at their longest"


async def test_sleep_on_cpu_does_nothing(engine: "VllmEngine") -> None:
    await engine.sleep()
    assert len((await ask_greedily(engine, PROMPT, 3)).token_ids) == 3
    await engine.wake(("weights", "kv_cache"))
