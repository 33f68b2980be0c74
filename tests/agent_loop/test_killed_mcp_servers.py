"""Servers of MCP tools are killed at 20 seeded moments: nothing is trained twice, rewarded by mistake, or left running.

The server is a script without the SDK, so that a new one starts in a moment.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop import retries
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import Completion, Deadline, FailureClass, FinishReason, Prompt, SamplingParams, Trajectory
from tests.agent_loop.test_isolation import number_of
from tests.chat_templates import make_tokenizer
from tests.processes import children_since, still_running

NUM_KILLS = 20
SERVER = """
import json, sys, threading, time

steps = []

def result_of(message):
    if message["method"] == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        return {"tools": [{"name": name, "inputSchema": schema} for name in ("double", "note", "step")]}
    number = message["params"]["arguments"]["number"]
    if message["params"]["name"] == "note":
        with open("notes", "a") as notes:
            notes.write(f"{number}\\n")
    if message["params"]["name"] == "step":
        steps.append(str(number))
    time.sleep(0.05)
    texts = {"double": str(2 * number), "note": "noted", "step": ", ".join(steps)}
    return {"content": [{"type": "text", "text": texts[message["params"]["name"]]}]}

def answer(message):
    known = message["method"] in ("initialize", "tools/list", "tools/call")
    part = {"result": result_of(message)} if known else {"error": {"code": -32601, "message": "unknown"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **part}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        threading.Thread(target=answer, args=(message,), daemon=True).start()
"""
TOOLS = f"""
tools:
  - {{type: mcp, command: [{sys.executable}, server.py], include: [double, note], idempotent: [double]}}
  - {{type: mcp, command: [{sys.executable}, server.py], include: [step], scope: trajectory}}
"""


class CallingEngine:
    """Calls three tools in each of two turns, and answers in the third."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def ids_of(self, number: int, turn: int) -> list[int]:
        calls = [{"name": name, "arguments": {"number": number}} for name in ("double", "note", "step")]
        text = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
        text = text if turn < 2 else "<answer>done</answer>"
        return self._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        ids = self.ids_of(number_of(request_id), int(request_id[-1]))
        return Completion(
            token_ids=ids,
            logprobs=[-0.5] * len(ids),
            finish_reason=FinishReason.STOP,
            version_spans=((0, 0),),
        )


def reward(prompt: Prompt, turns: Any) -> float:
    return 1.0


def make_worker(folder: Path) -> AgentLoopWorker:
    make_tokenizer("qwen2_5").save_pretrained(folder)
    (folder / "server.py").write_text(SERVER)
    (folder / "tools.yaml").write_text(TOOLS)
    config = WorkerConfig(
        model=ModelSection(path=str(folder)),
        rollout=RolloutSection(max_response_tokens=2000),
        reward=RewardSection(function=f"{__name__}.reward"),
        tools=tuple(with_server_tools(load_tool_file(folder / "tools.yaml"))),
        run_seed=0,
        run_dir=str(folder),
    )
    return AgentLoopWorker(config, "agent_loop")


def servers() -> list[psutil.Process]:
    """The servers that live, the oldest first."""
    return [child for child in psutil.Process().children() if is_server(child)]


def is_server(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[-1:] == ["server.py"]
    except psutil.Error:  # it has ended
        return False


async def kill_servers() -> None:
    chance = random.Random(0)
    for _ in range(NUM_KILLS):
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        while not (alive := servers()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # The newest may be about to take the place of a killed one.
        chance.choice([alive[0], alive[-1], chance.choice(alive)]).kill()


def check_trajectory(trajectory: Trajectory, engine: CallingEngine) -> None:
    number = int(trajectory.prompt_id[1:])
    assert {lost.failure_class for lost in trajectory.failures} <= {FailureClass.TOOL}
    if trajectory.reward is None:
        assert trajectory.failures != ()
        return
    texts = [result.text for result in trajectory.tool_results]
    assert texts == [str(2 * number), "noted", str(number), str(2 * number), "noted", f"{number}, {number}"]
    assert sum(trajectory.response_mask) == sum(len(engine.ids_of(number, turn)) for turn in range(3))


@pytest.mark.slow
async def test_killed_servers_train_nothing_twice_reward_no_failure_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.1)
    engine: Any = CallingEngine(make_tokenizer("qwen2_5"))
    worker, trajectories = make_worker(tmp_path), []
    others = psutil.Process().children()
    await worker.start()
    kills = asyncio.create_task(kill_servers())

    async def play_until_the_last_kill() -> None:
        while not kills.done():
            number = next(numbers)
            prompt = Prompt(prompt_id=f"p{number}", messages=[{"role": "user", "content": "Call your tools."}])
            request = TrajectoryRequest(step=1, prompt=prompt, sample_index=0)
            trajectories.append((await worker.run(request, engine))[1])

    numbers = iter(range(100_000))
    await asyncio.gather(kills, *(play_until_the_last_kill() for _ in range(12)))
    left = children_since(others)
    await worker.aclose()
    for trajectory in trajectories:
        check_trajectory(trajectory, engine)
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == len(trajectories)
    assert any(trajectory.failures for trajectory in trajectories)
    notes = Counter((tmp_path / "notes").read_text().split())
    for trajectory in trajectories:  # two turns of each try
        assert notes[trajectory.prompt_id[1:]] <= 2 * (1 + len(trajectory.failures))
    assert still_running([*left, *children_since(others)], within_s=0) == []
