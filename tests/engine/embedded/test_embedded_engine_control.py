"""Everything that ends or holds a request: deadlines, abort, cancellation, a full cache, a bug."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
import torch

from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.errors import EngineDeadError, EngineError
from agentrl.types import Completion, FinishReason
from tests.engine.engine_driver import ask_greedily, freeze, thaw, until_generated, until_present

Start = Callable[..., Awaitable[TransformersEngine]]
Save = Callable[..., str]


async def test_a_passed_deadline_gives_what_was_sampled(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(max_positions=8192), max_tokens=8192)
    await ask_greedily(engine, [1], 2)  # the first step is slower
    completion = await ask_greedily(engine, [1, 2], 7000, wait_s=1)
    assert completion.finish_reason is FinishReason.ABORT
    assert 0 < len(completion.token_ids) == len(completion.logprobs) < 7000


async def test_a_deadline_passes_while_the_request_waits_or_is_frozen(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(), max_concurrent_trajectories=1)
    running = asyncio.create_task(ask_greedily(engine, [1, 2], 250, name="a", wait_s=4))
    await until_generated(engine, 1)
    await freeze(engine)
    waiting = await ask_greedily(engine, [3, 4], 250, name="b", wait_s=0.1)
    assert (waiting.token_ids, waiting.finish_reason, waiting.version_spans) == ([], FinishReason.ABORT, ((0, 0),))
    assert (await running).finish_reason is FinishReason.ABORT
    assert (await engine.stats()).num_running == 0


async def test_abort_gives_what_was_sampled_and_ignores_unknown_ids(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    whole = await ask_greedily(engine, [1, 2], 250, name="whole")
    task = asyncio.create_task(ask_greedily(engine, [1, 2], 250, name="a"))
    await until_generated(engine, 255)
    await engine.abort("never heard of")
    await engine.abort("a")
    completion = await task
    assert completion.finish_reason is FinishReason.ABORT
    assert 5 <= len(completion.token_ids) < 250
    assert completion.token_ids == whole.token_ids[: len(completion.token_ids)]


async def test_cancelling_frees_the_row(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(), max_concurrent_trajectories=1)
    tasks = [asyncio.create_task(ask_greedily(engine, [1, 2], 250, name=name)) for name in "ab"]
    await until_generated(engine, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until_present(engine, 0)
    assert (await engine.stats()).kv_tokens_used == 0
    assert len((await ask_greedily(engine, [5], 3, name="c")).token_ids) == 3


async def test_a_cancelled_request_leaves_a_frozen_engine_at_once(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    await freeze(engine)
    task = asyncio.create_task(ask_greedily(engine, [1, 2], 250))
    await until_present(engine, 1)
    task.cancel()
    await until_present(engine, 0)


async def test_more_requests_than_rows_wait_and_are_answered_in_order(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model(), max_concurrent_trajectories=2)
    rng, finished = random.Random(10), []

    async def ask(name: str) -> None:
        completion = await ask_greedily(engine, [rng.randrange(64) for _ in range(9)], 30, name=name)
        assert len(completion.token_ids) == 30
        finished.append(name)

    await freeze(engine)
    tasks = [asyncio.create_task(ask(str(i))) for i in range(8)]
    await until_present(engine, 8)
    await thaw(engine)
    await until_generated(engine, 1)
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 6)
    await asyncio.gather(*tasks)
    assert finished == [str(i) for i in range(8)]


async def test_a_request_id_in_use_is_refused(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    await freeze(engine)
    first = asyncio.create_task(ask_greedily(engine, [1], 20, name="same"))
    await until_present(engine, 1)
    with pytest.raises(EngineError, match="`same`: the id is in use"):
        await ask_greedily(engine, [1], 20, name="same")
    await thaw(engine)
    assert len((await first).token_ids) == 20


async def test_nothing_is_lost_or_changed_when_everything_happens_at_once(
    save_model: Save, start_engine: Start
) -> None:
    """Multi-turn trajectories with shared prompts on few rows, some cancelled or aborted, with interruptions."""
    folder, rng = save_model(), random.Random(0)
    engine, alone = await start_engine(folder, max_concurrent_trajectories=6), await start_engine(folder)
    prompts = [[rng.randrange(64) for _ in range(rng.randint(1, 60))] for _ in range(4)]
    asked: list[tuple[list[int], Completion]] = []

    async def trajectory(index: int) -> None:
        tokens = list(prompts[index % 4])
        for turn in range(3):
            max_tokens = rng.randint(1, 25)
            completion = await ask_greedily(engine, tokens, max_tokens, name=f"{index}.{turn}")
            asked.append((tokens, completion))
            tokens = tokens + completion.token_ids + [rng.randrange(64) for _ in range(rng.randint(1, 12))]
            await asyncio.sleep(rng.random() * 0.05)

    async def disturb() -> None:
        for _ in range(10):
            await asyncio.sleep(0.05)
            await freeze(engine)
            await thaw(engine)
            await engine.abort(f"{rng.randrange(24)}.{rng.randrange(3)}")
            trajectories[rng.randrange(24)].cancel()

    trajectories = [asyncio.create_task(trajectory(i)) for i in range(24)]
    async with asyncio.timeout(200):
        _, *outcomes = await asyncio.gather(disturb(), *trajectories, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await until_present(engine, 0)
    assert len(asked) > 30
    for prompt, completion in asked:
        expected = await ask_greedily(alone, prompt, max(1, len(completion.token_ids)))
        assert completion.token_ids == expected.token_ids[: len(completion.token_ids)]


async def test_closing_fails_open_requests_instead_of_leaving_them(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    task = asyncio.create_task(ask_greedily(engine, [1, 2], 250))
    await until_generated(engine, 1)
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        await engine.stats()
    with pytest.raises(EngineError, match="closed"):
        await ask_greedily(engine, [1, 2], 1)


async def test_a_bug_fails_every_open_and_every_later_call_with_the_cause(
    save_model: Save, start_engine: Start
) -> None:
    engine = await start_engine(save_model(), max_concurrent_trajectories=1)
    tasks = [asyncio.create_task(ask_greedily(engine, [1, 2], 250, name=str(i))) for i in range(3)]
    await until_generated(engine, 1)
    engine._scheduler.model.cache.layers[0] = torch.zeros(
        2, 1, 1, 512, 1
    )  # the next step finds a cache of the wrong shape
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, EngineDeadError)
        assert "it died of RuntimeError" in str(outcome)
    for refused in (ask_greedily(engine, [1], 5), engine.stats(), engine.sleep()):
        with pytest.raises(EngineDeadError, match="it died of RuntimeError"):
            await refused


async def test_an_idle_engine_computes_nothing(save_model: Save, start_engine: Start) -> None:
    engine = await start_engine(save_model())
    await ask_greedily(engine, [1, 2], 5)
    await until_present(engine, 0)
    before = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < 0.15
