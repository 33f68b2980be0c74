"""1,024 trajectories with three real tools on one worker: a tool's failure reaches no other of them, and nothing is left."""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.agent_loop import retries
from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import (
    Completion,
    Deadline,
    FailureClass,
    FinishReason,
    Prompt,
    SamplingParams,
    ToolStatus,
    Trajectory,
    Turn,
)
from tests.chat_templates import make_tokenizer
from tests.processes import children_since, still_running

MCP_SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"
NUM_TRAJECTORIES = 1024
TOOL_TIMEOUT_S = 25.0
FAILURES: dict[str, tuple[int, dict[str, Any], ToolStatus | None]] = {
    # which call of the turn differs, how, and what becomes of it; None: the trajectory is lost to the infrastructure
    "mcp error": (0, {"name": "fail", "arguments": {}}, ToolStatus.ERROR),
    "mcp hang": (0, {"name": "wait", "arguments": {"seconds": 600, "file": "/dev/null"}}, ToolStatus.TIMEOUT),
    "mcp huge": (0, {"name": "many", "arguments": {"characters": 9 << 20}}, ToolStatus.ERROR),
    "mcp crash": (0, {"name": "kill", "arguments": {"how": "exit"}}, None),
    "function raises": (1, {"name": "double", "arguments": {"number": -1}}, ToolStatus.ERROR),
    "function blocks": (1, {"name": "double", "arguments": {"number": -2}}, ToolStatus.OK),
    "verl raises": (2, {"name": "session", "arguments": {"text": "raise"}}, ToolStatus.ERROR),
    "verl hangs": (2, {"name": "session", "arguments": {"text": "hang"}}, ToolStatus.TIMEOUT),
    "verl away": (2, {"name": "session", "arguments": {"text": "away"}}, None),
}


def double(number: int) -> str:
    """Double a number.

    Args:
        number: the number.
    """
    if number == -1:
        raise ValueError("it is negative")
    if number == -2:
        time.sleep(2)
    return str(2 * number)


class Session:
    """A tool with verl's methods, which counts its sessions."""

    opened: ClassVar[Counter[str]] = Counter()
    released: ClassVar[Counter[str]] = Counter()

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self._texts: dict[str, list[str]] = {}

    async def create(self, instance_id: str, **kwargs: Any) -> str:
        self.opened[instance_id] += 1
        self._texts[instance_id] = []
        return instance_id

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[str, float, dict]:
        text = parameters["text"]
        if text == "raise":
            raise ValueError("no such text")
        if text == "away":
            raise ConnectionError("port 5432")
        if text == "hang":
            await asyncio.sleep(600)
        self._texts[instance_id].append(text)
        return ", ".join(self._texts[instance_id]), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.released[instance_id] += 1
        del self._texts[instance_id]


class CallingEngine:
    """Calls the three tools in the first turn, and answers in the second."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, failures: dict[str, str]) -> None:
        self._tokenizer = tokenizer
        self._failures = failures
        self._answer = tokenizer.encode("<answer>done</answer><|im_end|>", add_special_tokens=False)

    async def generate(
        self, token_ids: list[int], params: SamplingParams, *, request_id: str, deadline: Deadline
    ) -> Completion:
        ids = self._answer
        if request_id.endswith("-0"):
            number = number_of(request_id)
            calls: list[dict[str, Any]] = [
                {"name": "add", "arguments": {"a": number, "b": 1}},
                {"name": "double", "arguments": {"number": number}},
                {"name": "session", "arguments": {"text": f"text {number}"}},
            ]
            if failure := self._failures.get(f"p{number}"):
                place, call, _ = FAILURES[failure]
                calls[place] = call
            text = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
            ids = self._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        return Completion(
            token_ids=ids,
            logprobs=[-0.5] * len(ids),
            finish_reason=FinishReason.STOP,
            version_spans=((0, 0),),
        )


def number_of(request_id: str) -> int:
    found = re.search(r"-p(\d+)-", request_id)
    assert found is not None
    return int(found[1])


def seeded_failures() -> dict[str, str]:
    """The kind of failure of a tenth of the trajectories, by prompt."""
    chance = random.Random(0)
    often = [kind for kind in FAILURES if kind not in ("mcp crash", "mcp huge")]
    chosen = chance.sample(range(NUM_TRAJECTORIES), NUM_TRAJECTORIES // 10)
    kinds = ["mcp crash", "mcp huge", "mcp huge"] + [often[index % len(often)] for index in range(len(chosen) - 3)]
    return {f"p{number}": kind for number, kind in zip(chosen, kinds, strict=True)}


def make_worker(folder: Path) -> AgentLoopWorker:
    make_tokenizer("qwen2_5").save_pretrained(folder)
    file = folder / "tools.yaml"
    file.write_text(
        f"tools:\n"
        f"  - type: mcp\n"
        f"    command: [{sys.executable}, {MCP_SERVER}]\n"
        f"    include: [add, fail, wait, many, kill]\n"
        f"    idempotent: [add, fail, wait, many]\n"
        f"  - {{function: {__name__}.double}}\n"
        f"  - class_name: {__name__}.Session\n"
        f"    tool_schema: {{type: function, function: {{name: session, parameters: {{type: object}}}}}}\n"
    )
    config = WorkerConfig(
        model=ModelSection(path=str(folder)),
        rollout=RolloutSection(max_response_tokens=2000, tool_timeout_s=TOOL_TIMEOUT_S),
        reward=RewardSection(function=f"{__name__}.reward", timeout_s=60.0),
        tools=tuple(with_server_tools(load_tool_file(file))),
        run_seed=0,
        run_dir=str(folder),
    )
    return AgentLoopWorker(config, "agent_loop")


def open_files() -> list[str]:
    return [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


def reward(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    return float("done" in turns[-1].text)


def check_trajectory(trajectory: Trajectory, failure: str | None) -> None:
    number = int(trajectory.prompt_id[1:])
    place, _, status = FAILURES[failure] if failure else (None, {}, ToolStatus.OK)
    if status is None:
        assert trajectory.reward is None
        assert {lost.failure_class for lost in trajectory.failures} == {FailureClass.TOOL}
        return
    # A call in flight when another's kills the shared server is repeated; without the time for that, its episode is.
    assert {lost.failure_class for lost in trajectory.failures} <= {FailureClass.TOOL}
    assert not trajectory.failures or "MCP server" in trajectory.failures[0].message
    assert trajectory.reward == 1.0
    [results, _] = [turn.results for turn in trajectory.turns]
    for index, text in enumerate((str(number + 1), str(2 * number), f"text {number}")):
        if index == place:
            assert results[index].status is status
        else:
            assert (results[index].status, results[index].text) == (ToolStatus.OK, text)


@pytest.mark.slow
@pytest.mark.alone  # innocent calls must be answered before their time limit, at the latest when they are repeated
async def test_no_failure_of_a_tool_reaches_another_trajectory_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_S", 0.1)
    this_process = psutil.Process()
    others = this_process.children()
    worker, failures = make_worker(tmp_path), seeded_failures()
    files_before = this_process.num_fds()
    engine: Any = CallingEngine(make_tokenizer("qwen2_5"), failures)
    await worker.start()

    async def play(number: int) -> Trajectory:
        prompt = Prompt(prompt_id=f"p{number}", messages=[{"role": "user", "content": "Call your tools."}])
        return (await worker.run(TrajectoryRequest(step=1, prompt=prompt, sample_index=0), engine))[1]

    trajectories = await asyncio.gather(*map(play, range(NUM_TRAJECTORIES)))
    repeated = [trajectory for trajectory in trajectories if trajectory.failures and trajectory.reward is not None]
    assert len(repeated) < NUM_TRAJECTORIES // 10, "the shared server's loss was not made good"
    left = children_since(others)
    assert left != []
    await worker.aclose()
    for trajectory in trajectories:
        check_trajectory(trajectory, failures.get(trajectory.prompt_id))
    assert still_running([*left, *children_since(others)], within_s=0) == []
    assert Session.opened == Session.released
    for _ in range(100):  # the loops of tools close theirs a moment later
        if this_process.num_fds() <= files_before:
            break
        await asyncio.sleep(0.05)
    assert this_process.num_fds() <= files_before, open_files()
