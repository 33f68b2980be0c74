"""Helpers of the engine tests: requests for completions, and waiting for a state of an engine."""

import asyncio
from collections.abc import Callable

from agentrl.engine.base import Engine, EngineStats
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.types import Completion, Deadline, SamplingParams


async def ask(
    engine: Engine,
    prompt: list[int],
    max_tokens: int = 20,
    *,
    name: str = "request",
    wait_s: float = 200.0,
    temperature: float = 1.0,
    seed: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    **copy: int,
) -> Completion:
    """Sample one completion; `copy` is for an engine that has several."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, stop_token_ids=stop_token_ids)
    return await engine.generate(prompt, params, request_id=name, deadline=Deadline.after(wait_s), **copy)


async def ask_greedily(
    engine: Engine, prompt: list[int], max_tokens: int = 30, *, name: str = "request", wait_s: float = 200.0
) -> Completion:
    """Take the likeliest tokens, which no seed changes."""
    return await ask(engine, prompt, max_tokens, name=name, wait_s=wait_s, temperature=0.0)


async def freeze(engine: TransformersEngine) -> None:
    """Stop steps, and keep all requests; returns after the last step."""
    engine._scheduler.is_awake = False
    await engine.stats()


async def thaw(engine: TransformersEngine) -> None:
    engine._scheduler.is_awake = True
    await engine.stats()


async def until(engine: Engine, condition: Callable[[EngineStats], bool]) -> EngineStats:
    """Wait until the engine's statistics fulfil a condition, and return them."""
    async with asyncio.timeout(200):
        while not condition(stats := await engine.stats()):  # noqa: ASYNC110  # an engine tells nobody how far it is
            await asyncio.sleep(0)
    return stats


async def until_generated(engine: Engine, num_tokens: int) -> EngineStats:
    """Wait until the engine has sampled so many tokens since its start."""
    return await until(engine, lambda stats: stats.num_generated_tokens >= num_tokens)


async def until_present(engine: Engine, count: int) -> EngineStats:
    """Wait until the engine knows exactly so many requests."""
    return await until(engine, lambda stats: stats.num_running + stats.num_waiting == count)
