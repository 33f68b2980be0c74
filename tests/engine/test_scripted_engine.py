"""The scripted engine keeps the promises of the `Engine` protocol that agent-loop tests lean on."""

import asyncio

import pytest

from agentrl.engine.base import Engine
from agentrl.errors import EngineError
from agentrl.types import Completion, Deadline, FinishReason, SamplingParams
from tests.fakes import ScriptedEngine


async def ask(engine: Engine, prompt: list[int], max_tokens: int = 10, *, wait_s: float = 60.0) -> Completion:
    params = SamplingParams(max_tokens=max_tokens)
    return await engine.generate(prompt, params, request_id="r", deadline=Deadline.after(wait_s))


async def test_replies_come_in_order_by_prompt_or_from_a_function() -> None:
    in_order = ScriptedEngine([[1, 2], [3]])
    assert [(await ask(in_order, [0])).token_ids for _ in range(2)] == [[1, 2], [3]]
    assert (await ask(ScriptedEngine({(7,): [8], (9,): [10]}), [9])).token_ids == [10]
    assert (await ask(ScriptedEngine(lambda ids, _: [*ids, 5]), [4])).token_ids == [4, 5]


async def test_a_reply_is_cut_at_max_tokens() -> None:
    completion = await ask(ScriptedEngine([[1, 2, 3]]), [0], 2)
    assert (completion.token_ids, completion.finish_reason) == ([1, 2], FinishReason.LENGTH)
    assert len(completion.logprobs) == 2


async def test_a_scripted_error_is_raised() -> None:
    with pytest.raises(EngineError, match="dead"):
        await ask(ScriptedEngine([EngineError("dead")]), [0])


async def test_abort_and_deadline_end_a_request() -> None:
    slow = ScriptedEngine([[1]] * 3, delay_s=600)
    assert (await ask(slow, [0], wait_s=0.05)).finish_reason is FinishReason.ABORT
    task = asyncio.create_task(ask(slow, [0]))
    await asyncio.sleep(0.01)
    await slow.abort("r")
    assert (await task).finish_reason is FinishReason.ABORT
    assert (await slow.stats()).num_running == 0
