"""Cost of the gateway: server CPU time per call, delay of an answer, and memory of many sessions.

    python -m benchmarks.gateway.server_cost [--concurrent 256] [--sessions 1024] [--json FILE]

The gateway runs in this process with an engine that waits four seconds and gives a turn of about 200 tokens; the agents,
which send their whole dialogue with a tool at every call, run in another process. Each has six calls.

- CPU time: all of this process, less that of as many calls of the engine, as far apart, without a gateway; per call.
- Delay: what an agent waits beyond those of the engine; each agent starts at a random time.
- Memory: growth of this process while `--sessions` sessions of six calls are open.

Beside them the machine's load: the aims hold for an idle machine.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.agents import AgentTask
from agentrl.agent_loop.gateway.episodes import AgentEpisodes
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest
from agentrl.config.schema.agent_loop import AgentSection
from agentrl.config.schema.run import ModelSection, RolloutSection
from agentrl.models.tokenizer import load_tokenizer
from agentrl.observability.loop_lag import collect_rarely
from agentrl.types import Completion, Deadline, FinishReason, Prompt, SamplingParams
from benchmarks.judge import report

_MODEL = "examples/arithmetic/policy"
_NUM_CALLS = 6
_TURN_S = 4.0
_THOUGHT = "I add the two numbers and look whether the sum is right. " * 6
_RESULT = "The sum of the two numbers is 3. " * 9
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


class PacedEngine:
    """The part of an `Engine` that sessions use: the same turn after four seconds."""

    def __init__(self) -> None:
        text = f'{_THOUGHT}<tool_call>\n{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}\n</tool_call><|im_end|>'
        self._turn = load_tokenizer(_MODEL).encode(text, add_special_tokens=False)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        """See `Engine.generate`."""
        await asyncio.sleep(_TURN_S)
        return Completion(
            token_ids=list(self._turn),
            logprobs=[-0.5 - n / 1000 for n in range(len(self._turn))],
            finish_reason=FinishReason.STOP,
            version_spans=((0, 0),),
        )

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""


class RemoteAgents:
    """See `Agent`: the agents of another process."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self._ended: dict[str, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __spec__.name, "--agents", stdin=-1, stdout=-1, limit=2**20
        )
        self._reading = asyncio.create_task(self._read())

    async def play(self, task: AgentTask) -> None:
        """Let the process play an episode."""
        ended = self._ended[task.session_url] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
        await ended

    async def aclose(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            url, delays_s = json.loads(line)
            self.delays_s += delays_s
            self._ended.pop(url).set_result(None)


async def agents() -> None:
    """Play episodes that are read from the standard input, all at once."""
    collect_rarely()  # a pause of this process is not one of the gateway
    loop, draws = asyncio.get_running_loop(), random.Random(0)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as tasks:
        async for line in reader:
            tasks.create_task(_episode(http, json.loads(line), draws.uniform(0, 2 * _TURN_S)))


async def _episode(http: aiohttp.ClientSession, task: dict[str, Any], pause_s: float) -> None:
    messages, delays_s = list(task["messages"]), []
    await asyncio.sleep(pause_s)
    for _ in range(_NUM_CALLS):
        started = time.perf_counter()
        body = {"model": "policy", "messages": messages, "tools": [_TOOL]}
        async with http.post(f"{task['session_url']}/v1/chat/completions", json=body) as response:
            answer = await response.json()
        delays_s.append(time.perf_counter() - started - _TURN_S)
        message = answer["choices"][0]["message"]
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": _RESULT} for c in message["tool_calls"]]
    print(json.dumps([task["session_url"], delays_s]), flush=True)


async def measure(count: int) -> report.Row:
    """Return the figures of so many sessions at once."""
    engine: Any = PacedEngine()
    player, process = RemoteAgents(), psutil.Process()
    rollout = RolloutSection(max_turns=_NUM_CALLS, trajectory_timeout_s=600)
    tokens = ChatTokens.of_model(ModelSection(path=_MODEL), [])
    episodes = AgentEpisodes(
        AgentSection(), rollout, tokens, ThreadPoolExecutor(2), max_row_tokens=100_000, agent=player
    )
    await episodes.start()
    text = "How much is 6 * 7? Write a program that says so, and give the answer in <answer> tags. "
    requests = [
        EpisodeRequest(
            trajectory_id=f"1-p{n}-0",
            prompt=Prompt(prompt_id=f"p{n}", messages=[{"role": "user", "content": f"{n}: {text * 2}"}]),
            sample_index=0,
            seed=str(n),
        )
        for n in range(count)
    ]
    await episodes.run(requests[0], engine)  # builds the template with the tool
    collect_rarely()  # as an agent-loop worker, once its parts are built
    player.delays_s.clear()
    draws = random.Random(0)
    alone = [_calls_alone(engine, request, draws.uniform(0, 2 * _TURN_S)) for request in requests]
    alone_s = await _cpu_time_s(lambda: asyncio.gather(*alone))
    before_bytes = process.memory_info().rss
    trajectories: list[Any] = []

    async def play() -> None:
        trajectories.extend(await asyncio.gather(*(episodes.run(request, engine) for request in requests)))

    cpu_time_s = await _cpu_time_s(play)
    grown_bytes = process.memory_info().rss - before_bytes
    for trajectory in trajectories:
        if len(trajectory.turns) != _NUM_CALLS or trajectory.row_starts:
            raise RuntimeError(f"not played as written: {len(trajectory.turns)} calls, rows {trajectory.row_starts}")
    await episodes.aclose()
    delays = report.percentiles(player.delays_s, scale=1000)
    return {
        "sessions at once": count,
        "CPU ms per call": 1000 * (cpu_time_s - alone_s) / (count * _NUM_CALLS),
        "delay p50 ms": delays["p50"],
        "delay p99 ms": delays["p99"],
        "memory MB": grown_bytes / 1e6,
        "tokens per session": statistics.fmean(len(trajectory.token_ids) for trajectory in trajectories),
        "load": os.getloadavg()[0],
    }


async def _calls_alone(engine: PacedEngine, request: EpisodeRequest, pause_s: float) -> None:
    await asyncio.sleep(pause_s)
    for _ in range(_NUM_CALLS):
        params = SamplingParams(max_tokens=1)
        await engine.generate([], params, request_id=request.trajectory_id, deadline=Deadline.after(60))


async def _cpu_time_s(play: Any) -> float:
    started = time.process_time()
    await play()
    return time.process_time() - started


def main() -> int:
    """Measure and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--concurrent", type=int, default=256)
    parser.add_argument("--sessions", type=int, default=1024)
    parser.add_argument("--agents", action="store_true", help="be the process of the agents")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in a worker
    if options.agents:
        uvloop.run(agents())
        return 0
    report.print_machine()
    rows = [uvloop.run(measure(count)) for count in (options.concurrent, options.sessions)]
    report.print_table("the gateway (the aims: 1 ms; p99 5 ms at 256; 300 MB at 1,024)", rows)
    path: Path | None = options.json
    report.write_json(path, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
