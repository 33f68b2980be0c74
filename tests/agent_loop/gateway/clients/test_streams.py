"""Streamed answers as the SDKs and frameworks themselves read them."""

import asyncio
import os
from pathlib import Path

import pytest

from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.types import ToolCall
from tests.agent_loop.gateway.protocols.scripted_gateway import reply, scripted_gateway

pytestmark = pytest.mark.slow

STREAMS = Path(__file__).parent / "streams.py"
CALL = ToolCall(call_id="c00000001", name="calc", arguments={"a": 431, "b": 27})
FINAL = ToolCall(call_id="c00000002", name="final_answer", arguments={"answer": "It is 11637."})
READ = {
    "chat_completions": 'Let me see. calc{"a":431,"b":27} tool_calls 17',
    "responses": 'Let me see. calc{"a":431,"b":27} completed 17',
    "messages": 'Let me see. calc{"a": 431, "b": 27} tool_use 5',
    "completions": "Let me see.",
    "refusals": (
        "n `tools[1].type`: tools of type `web_search_20250305` are not supported, only those with an `input_schema`"
    ),
}
"""Text, call, end and count of tokens by the SDKs, and the fields that they report as refused."""
PLAYED = dict.fromkeys(["openai_agents", "pydantic_ai", "langgraph", "smolagents"], "It is 11637.")
"""Final answers of the frameworks."""


def script(call: AgentCall) -> AgentReply:
    if call.prompt is not None:
        return reply("Let me see.")
    names = [tool["function"]["name"] for tool in call.tools]
    if "11637" in call.messages[-1]["content"]:
        return reply("", FINAL) if "final_answer" in names else reply("It is 11637.")
    # Pydantic AI ends a streamed run at the first text.
    is_loop = len(call.messages) > 1 or "Multiply two numbers." in call.tools[0]["function"]["description"]
    return reply("" if is_loop else "Let me see.", CALL, thought="Multiply.")


async def test_sdks_and_frameworks_read_the_streams(client_python: Path):
    async with scripted_gateway(script) as exchange:
        environment = os.environ | {
            "OPENAI_BASE_URL": f"{exchange.url}/v1",
            "OPENAI_API_KEY": "key",
            "ANTHROPIC_BASE_URL": exchange.url,
            "ANTHROPIC_API_KEY": "key",
        }
        process = await asyncio.create_subprocess_exec(
            client_python,
            STREAMS,
            *READ,
            *PLAYED,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    read = dict(line.split(": ", 1) for line in out.decode().splitlines() if line.split(": ")[0] in READ | PLAYED)
    assert read == READ | PLAYED
    assert all(call.stream for call in exchange.calls)
    assert len(exchange.calls) == len(READ) - 1 + 2 * len(PLAYED)
