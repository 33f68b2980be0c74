"""A real vLLM. References: the embedded engine, the actor's own forward pass, and a vLLM started on the same weights.

Two engines are started for the whole file, for a start takes up to half a minute.
"""

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import pytest_asyncio
import torch

from agentrl.config.schema import ModelSection
from agentrl.engine.transformers_engine import TransformersEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.types import FinishReason
from agentrl.weight_sync.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask, ask_greedily, until, until_generated, until_present
from tests.engine.vllm_cases import (
    CONTEXT,
    actor_logprobs,
    changed_policy,
    endless_policy,
    need_vllm,
    problems,
    rollout,
    weights_of,
)

if TYPE_CHECKING:
    from agentrl.engine.vllm_engine import VllmEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

PROMPT = [random.Random(0).randrange(3, 1000) for _ in range(40)]
LONG_PROMPT = [random.Random(1).randrange(3, 1000) for _ in range(200)]
BLOCK = 128


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return endless_policy(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def changed(base: str) -> str:
    return changed_policy(base, Path(base).with_name("changed"), seed=1)


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(base: str) -> "AsyncIterator[VllmEngine]":
    need_vllm()
    from agentrl.engine.vllm_engine import VllmEngine

    engine = VllmEngine(ModelSection(path=base), rollout())
    await engine.start()
    yield engine
    await engine.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fresh(changed: str) -> "AsyncIterator[VllmEngine]":
    """An engine that was started on the changed weights."""
    need_vllm()
    from agentrl.engine.vllm_engine import VllmEngine

    engine = VllmEngine(ModelSection(path=changed), rollout())
    await engine.start()
    yield engine
    await engine.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(shared: "VllmEngine", base: str, publisher: SharedMemoryPublisher) -> "AsyncIterator[VllmEngine]":
    """The shared engine, idle, with the weights of `base` as version 0."""
    yield shared
    await shared.resume()
    await until_present(shared, 0)
    await shared.load_weights(publisher.publish(weights_of(base).items()), version=0)


def core_process(engine: "VllmEngine") -> psutil.Process:
    assert engine._llm is not None
    return psutil.Process(engine._llm.engine_core.resources.engine_manager.processes[0].pid)


async def test_greedy_tokens_equal_those_of_the_embedded_engine(engine: "VllmEngine", base: str) -> None:
    embedded = TransformersEngine(ModelSection(path=base), rollout())
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


async def test_after_load_weights_the_engine_equals_a_fresh_one(
    engine: "VllmEngine", fresh: "VllmEngine", changed: str, publisher: SharedMemoryPublisher
) -> None:
    """The embedding is tied to the head, of which vLLM keeps a packed copy on CPU."""
    before = [await ask_greedily(engine, prompt, 80) for prompt in problems(4)]
    await engine.load_weights(publisher.publish(weights_of(changed).items()), version=7)
    for prompt, old in zip(problems(4), before, strict=True):
        updated, expected = await ask_greedily(engine, prompt, 80), await ask_greedily(fresh, prompt, 80)
        assert updated.token_ids == expected.token_ids != old.token_ids
        torch.testing.assert_close(updated.logprobs, expected.logprobs, atol=1e-5, rtol=0)
        assert updated.version_spans == ((0, 7),)
    assert (await engine.stats()).policy_version == 7


async def test_both_parts_of_a_completion_that_spans_an_update_are_stamped_and_exact(
    engine: "VllmEngine", base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    source = publisher.publish(weights_of(changed).items())
    start = await engine.stats()
    task = asyncio.create_task(ask(engine, PROMPT, 200, seed=3))
    await until_generated(engine, start.num_generated_tokens + 20)
    await engine.pause("keep")
    num_old = (await engine.stats()).num_generated_tokens - start.num_generated_tokens
    await engine.load_weights(source, version=5)
    await engine.resume()
    completion = await task
    assert len(completion.token_ids) == 200
    assert completion.version_spans == ((0, 0), (num_old, 5))
    for folder, span in ((base, slice(0, num_old)), (changed, slice(num_old, 200))):
        expected = actor_logprobs(folder, PROMPT, completion)
        torch.testing.assert_close(torch.tensor(completion.logprobs[span]), expected[span], atol=1e-4, rtol=0)


async def test_many_requests_run_through_updates_that_nobody_paused_for(
    engine: "VllmEngine", base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    folders = {0: base, 1: changed, 2: base, 3: changed}
    prompts = problems(12)  # more than run at once
    tasks = [asyncio.create_task(ask(engine, p, 150, name=str(i), seed=i)) for i, p in enumerate(prompts)]
    for version in (1, 2, 3):
        await until_generated(engine, (await engine.stats()).num_generated_tokens + 200)
        await engine.load_weights(publisher.publish(weights_of(folders[version]).items()), version=version)
    completions = await asyncio.gather(*tasks)
    assert max(len(completion.version_spans) for completion in completions) >= 3
    for prompt, completion in zip(prompts, completions, strict=True):
        assert len(completion.token_ids) == 150
        by_version = {v: actor_logprobs(folders[v], prompt, completion) for _, v in completion.version_spans}
        ends = [start for start, _ in completion.version_spans[1:]] + [150]
        for (start, version), end in zip(completion.version_spans, ends, strict=True):
            part = torch.tensor(completion.logprobs[start:end])
            torch.testing.assert_close(part, by_version[version][start:end], atol=1e-4, rtol=0)


async def test_the_next_turn_finds_its_prefix_until_the_weights_change(
    engine: "VllmEngine", changed: str, fresh: "VllmEngine", publisher: SharedMemoryPublisher
) -> None:
    start = await engine.stats()
    reply = await ask_greedily(engine, LONG_PROMPT, 100)
    second = LONG_PROMPT + reply.token_ids + [5, 6, 7]
    await ask_greedily(engine, second, 20)
    cached = await engine.stats()
    assert cached.num_cached_tokens - start.num_cached_tokens == len(second) // BLOCK * BLOCK
    assert cached.num_prefill_tokens - start.num_prefill_tokens == len(LONG_PROMPT) + len(second) % BLOCK
    await engine.load_weights(publisher.publish(weights_of(changed).items()), version=1)
    updated, expected = await ask_greedily(engine, second, 20), await ask_greedily(fresh, second, 20)
    assert updated.token_ids == expected.token_ids
    assert (await engine.stats()).num_cached_tokens == cached.num_cached_tokens


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
    completion = await ask_greedily(engine, PROMPT, 470, wait_s=0.3)
    assert completion.finish_reason is FinishReason.ABORT
    assert 0 < len(completion.token_ids) == len(completion.logprobs) < 470
    assert (await ask_greedily(engine, PROMPT, 10, wait_s=0.0)).token_ids == []


async def test_a_deadline_passes_while_the_engine_is_paused(engine: "VllmEngine") -> None:
    running = asyncio.create_task(ask_greedily(engine, PROMPT, 400, name="a", wait_s=1.5))
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 1)
    await engine.pause("keep")
    waiting = await ask_greedily(engine, PROMPT, 250, name="b", wait_s=0.1)
    assert (waiting.token_ids, waiting.finish_reason, waiting.version_spans) == ([], FinishReason.ABORT, ((0, 0),))
    assert (await running).finish_reason is FinishReason.ABORT
    assert (await engine.stats()).num_running == 0


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


async def test_a_request_id_in_use_is_refused(engine: "VllmEngine") -> None:
    first = asyncio.create_task(ask_greedily(engine, PROMPT, 20, name="same"))
    await until_present(engine, 1)
    with pytest.raises(EngineError, match="`same`: the id is in use"):
        await ask_greedily(engine, PROMPT, 20, name="same")
    assert len((await first).token_ids) == 20


async def test_stats_count_running_and_waiting_requests(engine: "VllmEngine") -> None:
    start = await engine.stats()
    assert start.kv_tokens_capacity >= 8 * CONTEXT
    assert (start.num_running, start.num_waiting, start.kv_tokens_used) == (0, 0, 0)
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 100, name=str(i))) for i in range(12)]
    full = await until(engine, lambda stats: stats.num_running == 8)
    assert full.num_waiting == 4
    assert 8 * len(PROMPT) <= full.kv_tokens_used <= full.kv_tokens_capacity
    await asyncio.gather(*tasks)
    end = await engine.stats()
    assert end.num_generated_tokens - start.num_generated_tokens == 12 * 100
    assert end.num_prefill_tokens - start.num_prefill_tokens == 12 * len(PROMPT)


async def test_pause_keep_freezes_and_resume_goes_on(engine: "VllmEngine") -> None:
    undisturbed = await ask_greedily(engine, PROMPT, 200)
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 200))
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 3)
    await engine.pause("keep")
    before = await engine.stats()
    await asyncio.sleep(0.2)
    assert await engine.stats() == before
    assert before.num_running == 1
    await engine.resume()
    assert (await task).token_ids == undisturbed.token_ids


async def test_pause_wait_lets_running_requests_finish_and_holds_new_ones(engine: "VllmEngine") -> None:
    running = asyncio.create_task(ask_greedily(engine, PROMPT, 200, name="a"))
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 3)
    paused = asyncio.create_task(engine.pause("wait"))
    await asyncio.sleep(0.05)
    held = asyncio.create_task(ask_greedily(engine, PROMPT, 5, name="b"))
    assert len((await running).token_ids) == 200
    await paused
    await asyncio.sleep(0.1)
    assert not held.done()
    await engine.resume()
    assert len((await held).token_ids) == 5


async def test_pause_abort_ends_running_and_waiting_requests(engine: "VllmEngine") -> None:
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 400, name=str(i))) for i in range(10)]
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 30)
    await engine.pause("abort")
    completions = await asyncio.gather(*tasks)
    assert {c.finish_reason for c in completions} == {FinishReason.ABORT}
    assert len(completions[0].token_ids) >= 3
    held = asyncio.create_task(ask_greedily(engine, PROMPT, 5, name="b"))
    await asyncio.sleep(0.1)
    assert not held.done()
    await engine.resume()
    assert len((await held).token_ids) == 5


async def test_sleep_on_cpu_does_nothing_and_says_so_once(
    engine: "VllmEngine", caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await engine.sleep(1)
            assert len((await ask_greedily(engine, PROMPT, 3)).token_ids) == 3
            await engine.wake(("weights", "kv_cache"))
    assert [record.message for record in caplog.records if "sleep" in record.message] == [
        "engine: vLLM cannot sleep on CPU: it keeps its memory"
    ]


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


async def test_weights_that_do_not_fit_or_are_gone_change_nothing(
    engine: "VllmEngine", changed: str, publisher: SharedMemoryPublisher
) -> None:
    before = await ask_greedily(engine, PROMPT)
    incomplete = weights_of(changed)
    del incomplete["model.norm.weight"]
    with pytest.raises(EngineError, match=r"missing `model\.norm\.weight`"):
        await engine.load_weights(publisher.publish(incomplete.items()), version=1)
    gone = SharedMemoryPublisher()
    source = gone.publish(weights_of(changed).items())
    gone.close()
    with pytest.raises(EngineError, match="publish"):
        await engine.load_weights(source, version=1)
    after = await ask_greedily(engine, PROMPT)
    assert (after.token_ids, after.version_spans) == (before.token_ids, ((0, 0),))


async def test_broken_weights_are_an_engine_error_and_leave_no_trace(
    engine: "VllmEngine", base: str, publisher: SharedMemoryPublisher
) -> None:
    before = await ask_greedily(engine, PROMPT)
    good = weights_of(base)
    bad = good | {"model.norm.weight": torch.full_like(good["model.norm.weight"], torch.nan)}
    await engine.load_weights(publisher.publish(bad.items()), version=1)
    with pytest.raises(EngineError, match="NaN or infinity"):
        await ask(engine, PROMPT)
    await engine.load_weights(publisher.publish(good.items()), version=2)
    assert (await ask_greedily(engine, PROMPT)).token_ids == before.token_ids


async def test_200_updates_leak_no_memory(
    engine: "VllmEngine", base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    processes = [psutil.Process(), core_process(engine)]
    folders = [weights_of(base), weights_of(changed)]

    async def update(version: int) -> None:
        task = asyncio.create_task(ask_greedily(engine, PROMPT, 12))
        await engine.load_weights(publisher.publish(folders[version % 2].items()), version=version)
        assert len((await task).token_ids) == 12

    for version in range(1, 21):  # allocators and caches fill up first
        await update(version)
    before = [process.memory_info().rss for process in processes]
    for version in range(21, 221):
        await update(version)
    growth_mb = [(process.memory_info().rss - old) / 2**20 for process, old in zip(processes, before, strict=True)]
    print(f"200 updates of {sum(w.nbytes for w in folders[0].values()) / 2**20:.1f} MiB: RSS grew by {growth_mb} MiB")
    assert max(growth_mb) < 24  # one leaked copy of the weights in ten updates would be 56 MiB


async def test_a_killed_core_fails_its_callers_at_once_and_the_engine_starts_again(
    fresh: "VllmEngine", publisher: SharedMemoryPublisher, base: str
) -> None:
    expected = await ask_greedily(fresh, PROMPT)
    await fresh.load_weights(publisher.publish(weights_of(base).items()), version=4)
    tasks = [asyncio.create_task(ask_greedily(fresh, PROMPT, 400, name=str(i))) for i in range(3)]
    await until_generated(fresh, (await fresh.stats()).num_generated_tokens + 5)
    pending: list[asyncio.Task[Any]] = [*tasks, asyncio.create_task(fresh.pause("wait"))]
    os.kill(core_process(fresh).pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineError] * 4
    assert "core process died" in str(outcomes[0])
    for refused in (ask_greedily(fresh, PROMPT), fresh.stats(), fresh.resume()):
        with pytest.raises(EngineError, match="core process died"):
            await refused
    await fresh.start()
    again = await ask_greedily(fresh, PROMPT)
    assert (again.token_ids, again.version_spans) == (expected.token_ids, ((0, 0),))


async def test_closing_fails_open_requests_and_leaves_no_process(fresh: "VllmEngine") -> None:
    core = core_process(fresh)
    task = asyncio.create_task(ask_greedily(fresh, PROMPT, 400))
    await until_generated(fresh, (await fresh.stats()).num_generated_tokens + 1)
    await fresh.aclose()
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        await ask_greedily(fresh, PROMPT)
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE


async def test_a_missing_model_fails_the_start() -> None:
    need_vllm()
    from agentrl.engine.vllm_engine import VllmEngine

    with pytest.raises(ConfigError, match="no-such-folder"):
        await VllmEngine(ModelSection(path="./no-such-folder"), rollout()).start()
