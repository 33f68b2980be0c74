"""Streamed answers as the SDKs and frameworks themselves read them."""

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.types import SamplingParams
from tests.agent_loop.gateway.gateway_stage import Calls, GatewayStage, rows_of
from tests.fakes import ScriptedEngine

pytestmark = pytest.mark.slow

STREAMS = Path(__file__).parent / "streams.py"
CALL = '<tool_call>\n{"name": "calc", "arguments": {"a": 431, "b": 27}}\n</tool_call>'
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "It is 11637."}}\n</tool_call>'
READ = {
    "chat_completions": 'Let me see. calc{"a":431,"b":27} tool_calls True',
    "responses": 'Let me see. calc{"a":431,"b":27} completed True',
    "messages": 'Let me see. calc{"a": 431, "b": 27} tool_use True',
    "completions": "Let me see.",
}
"""Text, call, end, and that there are counts, by the SDKs."""
PLAYED = dict.fromkeys(["openai_agents", "pydantic_ai", "langgraph", "smolagents"], "It is 11637.")
"""Final answers of the frameworks."""
REFUSED = {
    "refusals": "n `messages[0].content[0].type`: content of type `image` is not supported: the policy reads text only"
}
"""Fields that the SDKs report."""


async def test_sdks_and_frameworks_read_the_streams_and_their_dialogues_do_not_fork(
    stage: GatewayStage, client_python: Path
):
    expected, printed = READ | PLAYED | REFUSED, ""

    async def play(calls: Calls) -> None:
        nonlocal printed
        process = await asyncio.create_subprocess_exec(
            client_python,
            STREAMS,
            *expected,
            env=os.environ | calls.task.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        printed = out.decode()

    def policy(token_ids: list[int], params: SamplingParams) -> list[int]:
        text = stage.text(token_ids)
        if "11637" in text:
            return stage.ids(FINAL if "final_answer" in text else "It is 11637.")
        # Pydantic AI ends a streamed run at the first text.
        says_text = "Multiply two numbers." not in text
        thought = "<think>\nMultiply.\n</think>\n\n" if "<tools>" in text else ""
        return stage.ids(thought + ("Let me see.\n" if says_text else "") + (CALL if thought else ""))

    trajectory = await stage.play(
        play,
        ScriptedEngine(policy),
        agent={"continue_by_id": True},
        max_turns=40,
        max_row_tokens=8000,
        trajectory_timeout_s=120,
    )
    lines = (line.partition(": ") for line in printed.splitlines())
    read = {name: answer for name, _, answer in lines if name in expected}
    assert read == expected
    turns = [sum(b > a for a, b in pairwise([0, *mask])) for _, mask in rows_of(trajectory)]
    assert turns == [1] * len(READ) + [2] * len(PLAYED)
