"""Weight updates of a real vLLM. References: an engine started on the same weights, and the actor's own forward pass."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from agentrl.config.schema.run import ModelSection
from agentrl.errors import EngineError
from agentrl.training.model.decoder import export_model, load_model
from agentrl.types import Completion
from agentrl.weight_sync.base import LoraBase
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask, ask_greedily, until_generated
from tests.engine.vllm_engine.cases import (
    PROMPT,
    actor_logprobs,
    core_process,
    greedy,
    problems,
    weights_of,
)

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def test_an_exported_folder_is_the_same_model_to_vllm_and_to_transformers(
    fresh_answers: list[Completion], changed: str
) -> None:
    """The engine was started on what `export_model` wrote."""
    for prompt, answer in zip(problems(4), fresh_answers, strict=True):
        assert answer.token_ids == greedy(changed, prompt, 80)


async def test_after_load_weights_the_engine_equals_a_fresh_one(
    engine: "VllmEngine", fresh_answers: list[Completion], changed: str, publisher: SharedMemoryPublisher
) -> None:
    """The embedding is tied to the head, of which vLLM keeps a packed copy on CPU."""
    before = [await ask_greedily(engine, prompt, 80) for prompt in problems(4)]
    await engine.load_weights(publisher.publish(weights_of(changed).items()), version=7)
    for prompt, old, expected in zip(problems(4), before, fresh_answers, strict=True):
        updated = await ask_greedily(engine, prompt, 80)
        assert updated.token_ids == expected.token_ids != old.token_ids
        torch.testing.assert_close(updated.logprobs, expected.logprobs, atol=1e-5, rtol=0)
        assert updated.version_spans == ((0, 7),)
    assert (await engine.stats()).policy_version == 7


async def test_loras_factors_are_merged_into_the_weights_of_the_engine(
    engine: "VllmEngine", base: str, publisher: SharedMemoryPublisher, tmp_path: Path
) -> None:
    """Only the factors are sent. The reference is transformers with the products in its weights; versions do not add up."""
    draws = torch.Generator().manual_seed(4)
    weights, factors = weights_of(base), {}
    for name in [name for name in weights if name.endswith("proj.weight")]:
        (outputs, inputs), module = weights[name].shape, name.removesuffix(".weight")
        factors[f"{module}.lora_A"] = torch.randn(4, inputs, generator=draws) / inputs**0.5
        factors[f"{module}.lora_B"] = 0.1 * torch.randn(outputs, 4, generator=draws)
        weights[name] = weights[name] + 0.5 * factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
    merged = str(tmp_path / "merged")
    export_model(load_model(ModelSection(path=base)), weights, ModelSection(path=base), merged)
    source = replace(publisher.publish(factors.items()), lora=LoraBase(folder=base, scale=0.5))
    prompt = problems(1)[0]
    before = await ask_greedily(engine, prompt, 80)
    for version in (1, 2):
        await engine.load_weights(source, version=version)
    answer = await ask_greedily(engine, prompt, 80)
    assert answer.token_ids == greedy(merged, prompt, 80) != before.token_ids
    expected = actor_logprobs(merged, prompt, answer)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)
    assert answer.version_spans == ((0, 2),)


async def test_both_parts_of_a_completion_that_spans_an_update_are_stamped_and_exact(
    engine: "VllmEngine", base: str, changed: str, publisher: SharedMemoryPublisher
) -> None:
    source = publisher.publish(weights_of(changed).items())
    start = await engine.stats()
    task = asyncio.create_task(ask(engine, PROMPT, 200, seed=3))
    await until_generated(engine, start.num_generated_tokens + 20)
    await engine.load_weights(source, version=5)
    completion = await task
    assert len(completion.token_ids) == 200
    first, (num_old, version) = completion.version_spans
    assert (first, version) == ((0, 0), 5)
    assert 20 <= num_old < 200
    for folder, span in ((base, slice(0, num_old)), (changed, slice(num_old, 200))):
        expected = actor_logprobs(folder, PROMPT, completion)
        torch.testing.assert_close(torch.tensor(completion.logprobs[span]), expected[span], atol=1e-4, rtol=0)


async def test_many_requests_run_through_updates_without_a_pause(
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


async def test_100_updates_leak_no_memory(
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
    for version in range(21, 121):
        await update(version)
    growth_mb = [(process.memory_info().rss - old) / 2**20 for process, old in zip(processes, before, strict=True)]
    print(f"100 updates of {sum(w.nbytes for w in folders[0].values()) / 2**20:.1f} MiB: RSS grew by {growth_mb} MiB")
    assert max(growth_mb) < 24  # one leaked copy of the weights in ten updates would be 28 MiB
