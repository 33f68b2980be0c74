"""A real vLLM of two tensor-parallel ranks, and one of two copies. Reference: the actor's own forward pass."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from agentrl.config.schema.run import ModelSection
from agentrl.errors import EngineDeadError
from agentrl.types import Completion
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask, until_present
from tests.engine.vllm_engine.cases import CONTEXT, LONG_PROMPT, PROMPT, actor_logprobs, problems, rollout, weights_of
from tests.processes import still_running

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


@asynccontextmanager
async def running(folder: str, **changes: int) -> AsyncIterator["VllmEngine"]:
    """Run an engine; at the end none of its processes and files is left."""
    from agentrl.engine.vllm.engine import VllmEngine

    before = set(psutil.Process().children(recursive=True))
    engine = VllmEngine(ModelSection(path=folder), rollout(**changes), max_tokens=CONTEXT)
    await engine.start()
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert num_files(engine._processes.socket_folder) > 0
    try:
        yield engine
    finally:
        await engine.aclose()
    assert num_files(engine._processes.socket_folder) == 0
    # Python's own tracker of shared memory serves whatever comes next.
    left = await asyncio.to_thread(still_running, started, within_s=60)
    assert [p for p in left if "resource_tracker" not in " ".join(p.cmdline())] == []


def num_files(folder: str) -> int:
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


async def answers(engine: "VllmEngine") -> list[tuple[list[int], Completion]]:
    """Completions of six prompts at once, each of a trajectory of its own."""
    prompts = problems(6)
    copies = engine._rollout.data_parallel_size
    calls = (
        ask(engine, prompt, 60, name=f"t{i}-0", seed=i, wait_s=300, copy=i % copies) for i, prompt in enumerate(prompts)
    )
    return list(zip(prompts, await asyncio.gather(*calls), strict=True))


def assert_sampled_by(folder: str, given: list[tuple[list[int], Completion]], *, version: int) -> None:
    for prompt, completion in given:
        assert len(completion.token_ids) == 60
        assert completion.version_spans == ((0, version),)
        expected = actor_logprobs(folder, prompt, completion)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


async def test_two_tensor_parallel_ranks_sample_as_one_and_take_new_weights(
    base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    async with running(base, tensor_parallel_size=2) as engine:
        assert_sampled_by(base, await answers(engine), version=0)
        await engine.load_weights(publisher.publish(weights_of(changed).items()), version=1)
        assert_sampled_by(changed, await answers(engine), version=1)


async def test_two_copies_sample_as_one_take_new_weights_and_each_has_a_memory_of_its_own(
    base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    async with running(base, data_parallel_size=2) as engine:
        assert_sampled_by(base, await answers(engine), version=0)
        ranks = engine._ranks
        assert [rank.num_generated_tokens for rank in ranks] == [3 * 60 + 1, 3 * 60], "one is sampled at the start"
        assert (await engine.stats()).kv_tokens_capacity >= 8 * CONTEXT

        before = [rank.num_cached_tokens for rank in ranks]
        for turn, copy in enumerate([0, 0, 1]):
            await ask(engine, LONG_PROMPT, 1, name=f"t-{turn}", copy=copy)
        num_cached = [rank.num_cached_tokens - cached for rank, cached in zip(ranks, before, strict=True)]
        assert num_cached == [128, 0], "the block that the first turn has left is where it was left"

        await engine.load_weights(publisher.publish(weights_of(changed).items()), version=1)
        assert_sampled_by(changed, await answers(engine), version=1)

        lost = [asyncio.create_task(ask(engine, PROMPT, 200, name=f"l{copy}-0", copy=copy)) for copy in range(2)]
        await until_present(engine, 2)
        assert engine._llm is not None
        await engine._llm.pause_generation(
            mode="keep", clear_cache=False
        )  # else the copy that lives may be done before the death of the other is known
        cores = [p for p in psutil.Process().children(recursive=True) if "EngineCore_DP1" in p.name()]
        for core in cores:
            core.kill()
        ended = await asyncio.gather(*lost, return_exceptions=True)
        assert cores
        assert [type(error) for error in ended] == [EngineDeadError, EngineDeadError]
