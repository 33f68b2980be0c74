"""A real vLLM whose core dies or is closed, or never starts; the last of these tests, for each ends the engine."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from agentrl.config.schema.run import ModelSection
from agentrl.errors import EngineDeadError, EngineError
from agentrl.types import Completion
from tests.engine.engine_driver import ask_greedily, until_generated
from tests.engine.vllm_engine.cases import (
    CONTEXT,
    PROMPT,
    core_process,
    problems,
    rollout,
)
from tests.processes import still_running

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="package")]


async def test_a_killed_core_fails_its_callers_at_once_and_the_engine_starts_again(
    engine: "VllmEngine", fresh_answers: list[Completion]
) -> None:
    tasks = [asyncio.create_task(ask_greedily(engine, PROMPT, 400, name=str(i))) for i in range(3)]
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 5)
    os.kill(core_process(engine).pid, signal.SIGKILL)
    async with asyncio.timeout(100):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDeadError] * 3
    assert "core process died" in str(outcomes[0])
    for refused in (ask_greedily(engine, PROMPT), engine.stats()):
        with pytest.raises(EngineError, match="core process died"):
            await refused
    await engine.start()
    second = [await ask_greedily(engine, prompt, 80) for prompt in problems(4)]
    assert [a.token_ids for a in second] == [a.token_ids for a in fresh_answers]
    assert second[0].version_spans == ((0, 0),)


async def test_closing_fails_open_requests_and_leaves_no_process(engine: "VllmEngine") -> None:
    core = core_process(engine)
    task = asyncio.create_task(ask_greedily(engine, PROMPT, 400))
    await until_generated(engine, (await engine.stats()).num_generated_tokens + 1)
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        await ask_greedily(engine, PROMPT)
    assert not still_running([core])


async def test_a_missing_model_fails_the_start() -> None:
    from agentrl.engine.vllm.engine import VllmEngine

    with pytest.raises(OSError, match="no-such-folder"):
        await VllmEngine(ModelSection(path="./no-such-folder"), rollout(), max_tokens=CONTEXT).start()
