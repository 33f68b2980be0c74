"""A real vLLM of two tensor-parallel ranks. Reference: the actor's own forward pass."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from agentrl.config.schema import ModelSection
from agentrl.types import Completion
from agentrl.weight_sync.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask
from tests.engine.vllm_engine.cases import actor_logprobs, problems, rollout, weights_of
from tests.processes import still_running

if TYPE_CHECKING:
    from agentrl.engine.vllm_engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


@asynccontextmanager
async def running(folder: str, **changes: int) -> AsyncIterator["VllmEngine"]:
    """Run an engine; at the end none of its processes and files is left."""
    from agentrl.engine.vllm_engine import VllmEngine

    before = set(psutil.Process().children(recursive=True))
    engine = VllmEngine(ModelSection(path=folder), rollout(**changes))
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
    calls = (ask(engine, prompt, 60, name=f"t{i}-0", seed=i, wait_s=300) for i, prompt in enumerate(prompts))
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
