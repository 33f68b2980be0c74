import asyncio
import time
from pathlib import Path

import pytest

from agentrl import clock
from agentrl.config.schema.run import ModelSection
from agentrl.config.schema.simulation import SimulatedEngineSection
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from agentrl.simulation.engine import SimulatedEngine
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from agentrl.weight_sync.base import Transport, WeightSource

MODEL = ModelSection(path=str(Path(__file__).parents[2] / "examples/arithmetic/policy"))
TURN_END = 7
NOWHERE = WeightSource(transport=Transport.SHARED_MEMORY, address="", size_bytes=0, tensors=())


async def make_engine(**section: float) -> SimulatedEngine:
    simulated = SimulatedEngineSection(**{"step_ms": 7.0, "step_ms_per_request": 0.03} | section)  # type: ignore[arg-type]
    engine = SimulatedEngine(MODEL, simulated)
    await engine.start()
    return engine


async def ask(
    engine: SimulatedEngine, *, seed: int = 0, max_tokens: int = 5000, within_s: float = 1e6, name: str = "1-p-0-0"
) -> Completion:
    params = SamplingParams(max_tokens=max_tokens, seed=seed, stop_token_ids=(TURN_END,))
    return await engine.generate([1, 2, 3], params, request_id=name, deadline=Deadline.after(within_s))


def test_a_turn_follows_from_its_seed_and_ends_as_an_agent_s_does():
    async def main() -> tuple[list[Completion], list[Completion], SimulatedEngine]:
        engine = await make_engine()
        first = await asyncio.gather(*(ask(engine, seed=seed, name=f"1-p-{seed}-0") for seed in range(40)))
        second = [await ask(engine, seed=seed, name=f"1-p-{seed}-0") for seed in range(40)]
        return first, second, engine

    first, second, engine = run_in_virtual_time(main())
    assert [completion.token_ids for completion in first] == [completion.token_ids for completion in second]
    assert len({len(completion.token_ids) for completion in first}) > 30
    texts = [str(engine._tokenizer.decode(completion.token_ids)) for completion in first]
    calls = [read_calls(FORMATS["hermes"], text, {}, id_prefix="0").calls for text in texts]
    assert {call.name for turn in calls for call in turn} == {"simulated_tool"}
    assert all(calls), "there is one turn more at least"
    assert all(
        completion.finish_reason is FinishReason.STOP and completion.token_ids[-1] == TURN_END for completion in first
    )


def test_a_trajectory_has_as_many_turns_as_the_config_allows_and_answers_in_the_last():
    async def main() -> list[list[bool]]:
        engine = await make_engine(min_turns=2, max_turns=4)

        async def answers(sample: int, turn: int) -> bool:
            completion = await ask(engine, seed=1000 * sample + turn, name=f"1-p-{sample}-{turn}")
            return "<answer>" in str(engine._tokenizer.decode(completion.token_ids))

        return [[await answers(sample, turn) for turn in range(4)] for sample in range(60)]

    turns = run_in_virtual_time(main())
    counts = [answered.index(True) + 1 for answered in turns]
    assert {number: 10 < counts.count(number) < 32 for number in set(counts)} == {2: True, 3: True, 4: True}


def test_some_prompts_take_longer_than_others():
    async def main() -> list[int]:
        engine = await make_engine(prompt_sigma=1.0, turn_tokens_sigma=0)
        lengths: list[int] = []
        for prompt in range(20):
            params = SamplingParams(max_tokens=50_000, seed=1, stop_token_ids=(TURN_END,))
            asked = engine.generate([prompt], params, request_id=f"1-p{prompt}-0-0", deadline=Deadline.after(1e6))
            lengths.append(len((await asked).token_ids))
        return lengths

    lengths = run_in_virtual_time(main())
    assert max(lengths) > 3 * min(lengths)


def test_hours_of_sampling_pass_in_no_time_on_a_virtual_clock():
    async def main() -> float:
        engine = await make_engine(turn_tokens_median=100_000, turn_tokens_sigma=0, prompt_sigma=0)
        await ask(engine, max_tokens=200_000)
        return clock.now()

    started = time.monotonic()
    assert run_in_virtual_time(main()) == pytest.approx(100_000 * 7.03e-3, rel=1e-3)
    assert time.monotonic() - started < 5


def test_a_turn_is_cut_where_the_tokens_run_out():
    async def main() -> Completion:
        return await ask(await make_engine(), max_tokens=20)

    completion = run_in_virtual_time(main())
    assert (len(completion.token_ids), completion.finish_reason) == (20, FinishReason.LENGTH)


def test_a_deadline_ends_a_turn_with_what_is_there():
    async def main() -> Completion:
        engine = await make_engine(turn_tokens_median=1000, turn_tokens_sigma=0, prompt_sigma=0)
        completion = await ask(engine, within_s=1.0)
        assert (await engine.stats()).num_running == 0
        return completion

    completion = run_in_virtual_time(main())
    assert completion.finish_reason is FinishReason.ABORT
    assert len(completion.token_ids) == pytest.approx(1.0 / 7.03e-3, abs=2)


def test_a_cancelled_request_frees_its_place():
    async def main() -> None:
        engine = await make_engine()
        task = asyncio.create_task(ask(engine))
        await asyncio.sleep(0.05)
        assert (await engine.stats()).num_running == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stats = await engine.stats()
        assert (stats.num_running, stats.num_waiting, engine._turns) == (0, 0, {})

    run_in_virtual_time(main())


def test_new_weights_show_in_the_spans():
    async def main() -> Completion:
        engine = await make_engine(turn_tokens_median=1000, turn_tokens_sigma=0, prompt_sigma=0)
        task = asyncio.create_task(ask(engine))
        await asyncio.sleep(2.0)
        await engine.load_weights(NOWHERE, version=5)
        before = (await engine.stats()).num_generated_tokens
        completion = await task
        assert completion.version_spans == ((0, 0), (before, 5))
        return completion

    assert len(run_in_virtual_time(main()).token_ids) == 1000
