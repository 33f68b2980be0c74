"""A gateway with a scripted policy: sessions over HTTP, without a model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import aiohttp

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.agents import Agent, AgentTask
from agentrl.agent_loop.gateway.episodes import AgentEpisodes
from agentrl.agent_loop.gateway.exactness import ExactnessReport
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.run import RolloutSection
from agentrl.engine.base import Engine
from agentrl.types import Prompt, Trajectory
from tests.chat_templates import make_tokenizer

PROMPT = Prompt(
    prompt_id="p0", messages=[{"role": "user", "content": "How much is 6 * 7?"}], answer="42", extra={"hint": "six"}
)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Compute.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "How much is 6 * 7?"}


class Calls:
    """An agent's connection to its session, with the messages of one dialogue."""

    def __init__(self, http: aiohttp.ClientSession, task: AgentTask) -> None:
        self.http = http
        self.task = task

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
        async with self.http.post(f"{self.task.session_url}{path}", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, messages: Sequence[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """Return the assistant's message."""
        status, answer = await self.post("/v1/chat/completions", {"model": "m", "messages": messages, **body})
        assert status == 200, answer
        return answer["choices"][0]["message"]


class ScriptedAgent:
    """See `Agent`; it plays a coroutine."""

    def __init__(self, play: Callable[[Calls], Awaitable[Any]]) -> None:
        self._play = play

    async def start(self) -> None: ...

    async def play(self, task: AgentTask) -> Any:
        async with aiohttp.ClientSession() as http:
            return await self._play(Calls(http, task))

    async def aclose(self) -> None: ...


class GatewayStage:
    """Episodes of agents with a template of Qwen."""

    def __init__(self, template: str = "qwen2_5") -> None:
        self.tokenizer = make_tokenizer(template)
        self.threads = ThreadPoolExecutor(2)
        self.tokens = ChatTokens(self.tokenizer, [])
        self.report = ExactnessReport()
        """Counts of the last episode."""
        self.num_episodes = 0

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)

    def call(self, x: str, before: str = "") -> list[int]:
        return self.ids(f'{before}<tool_call>\n{{"name": "calc", "arguments": {{"x": "{x}"}}}}\n</tool_call>')

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokens.decode_all(token_ids)

    async def play(
        self,
        play: Callable[[Calls], Awaitable[Any]] | None,
        engine: Engine,
        *,
        max_row_tokens: int = 2000,
        max_session_tokens: int | None = None,
        prompt: Prompt = PROMPT,
        agent: dict[str, Any] | None = None,
        player: Agent | None = None,
        **rollout: Any,
    ) -> Trajectory:
        episodes = AgentEpisodes(
            AgentSection(**(agent or {})),
            RolloutSection(max_turns=8, trajectory_timeout_s=20).model_copy(update=rollout),
            self.tokens,
            self.threads,
            max_row_tokens=max_row_tokens,
            max_session_tokens=max_session_tokens,
            agent=ScriptedAgent(play) if play else player,
        )
        self.num_episodes += 1
        name = f"1-p0-{self.num_episodes}"
        request = EpisodeRequest(trajectory_id=name, prompt=prompt, sample_index=0, seed="0/1-p0-0")
        await episodes.start()
        try:
            return await episodes.run(request, engine)
        finally:
            self.report = episodes.settle(name, None)
            await asyncio.wait_for(episodes.aclose(), 10)


def rows_of(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Return ids and mask of each row."""
    bounds = [0, *trajectory.row_starts, len(trajectory.token_ids)]
    return [(trajectory.token_ids[a:b], trajectory.response_mask[a:b]) for a, b in pairwise(bounds)]
