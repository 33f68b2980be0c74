"""The agent that `make demo-agent` trains, with the policy that it starts from."""

import asyncio
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.agent_loop.gateway.agents import AgentTask
from agentrl.agent_loop.gateway.episodes import AgentEpisodes
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply
from agentrl.agent_loop.tool_agent_loop import EpisodeRequest
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.types import Prompt, ToolCall, Trajectory
from tests.agent_loop.gateway.protocols.scripted_gateway import reply, scripted_gateway
from tests.runners.run_process import finish_run, metrics

CONFIG = "examples/demo_agent/run.yaml"
SHOWN = yaml.safe_load(Path("tool_configs/python_tool_config.yaml").read_text())
PROBLEMS = Path("examples/arithmetic/train.jsonl").read_text().splitlines()
MESSAGES = [{"role": "system", "content": "Solve the problem."}, {"role": "user", "content": "What is 431 - 27?"}]


@pytest.fixture(autouse=True)
def fresh_solver() -> None:
    """Import the agent anew: its connections belong to the event loop of a single run, and each test has its own."""
    sys.modules.pop("examples.demo_agent.solver", None)


def script(call: AgentCall) -> AgentReply:
    if call.messages[-1]["role"] == "tool":
        return reply("<answer>\\boxed{404}</answer>")
    name = call.tools[0]["function"]["name"]
    return reply("", ToolCall(call_id="c00000001", name=name, arguments={"code": "print(431 - 27)"}))


def test_it_is_the_demo_with_an_agent_in_place_of_the_tool():
    demo, own = (load_run_config(path).config.model_dump() for path in ("configs/demo.yaml", CONFIG))
    different = {key for key in demo if demo[key] != own[key]}
    assert different == {"run", "agent_loop", "tool_config_path", "rollout", "judge"}
    assert own["agent_loop"]["agent"]["callable"] == "solver.solve"


def test_the_page_shows_it():
    blocks = re.findall(r"```python\n(.*?)```", Path("docs/agents.md").read_text(), re.DOTALL)
    assert blocks[-1] in Path("examples/demo_agent/solver.py").read_text()


@pytest.mark.slow
async def test_it_shows_the_policy_what_the_warm_start_knows():
    from examples.demo_agent.solver import solve

    async with scripted_gateway(script) as exchange:
        task = AgentTask(
            prompt="What is 431 - 27?",
            messages=MESSAGES,
            prompt_id="p0",
            session_url=exchange.url,
            api_key="key",
            deadline_s=60,
        )
        await solve(task)
    first, second = exchange.calls
    (tool,) = SHOWN["tools"]
    assert [str(shown) for shown in first.tools] == [str(tool["tool_schema"])]  # in this order, which is a single token
    assert first.messages == MESSAGES
    assert second.messages[-1]["content"] == "success\nstdout:\n404"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(2*(3+4) - 5//2)", "success\nstdout:\n12"),
        ("print(7 // 0)", "failure: exit code 1\nstderr:\nZeroDivisionError: integer division or modulo by zero"),
        ("import os", "failure: exit code 1\nstderr:\nValueError: only print(EXPRESSION) can be run"),
        ("print(9**9)", "failure: exit code 1\nstderr:\nValueError: 9 ** 9 is no integer expression"),
        ("print(1", "failure: exit code 1\nstderr:\nSyntaxError: '(' was never closed (<unknown>, line 1)"),
    ],
)
def test_its_tool_computes_integers_and_nothing_else(code: str, text: str):
    from examples.demo_agent.solver import run_program

    assert run_program(code) == text


@pytest.mark.slow
async def test_log_probabilities_of_its_rows_equal_a_separate_forward_pass():
    loaded = load_run_config(CONFIG, ["agent_loop.agent.callable=examples.demo_agent.solver.solve"]).config
    trajectories = await play(loaded, 24)
    assert sum(len(trajectory.turns) > 1 for trajectory in trajectories) >= 8
    policy = AutoModelForCausalLM.from_pretrained(loaded.model.path, dtype=torch.float32)
    for trajectory in trajectories:
        assert not trajectory.row_starts
        ids = torch.tensor([trajectory.token_ids])
        with torch.inference_mode():
            logits = policy(input_ids=ids).logits[0, :-1]
        recomputed = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        is_sampled = torch.tensor(trajectory.response_mask[1:]) == 1
        stored = torch.tensor(trajectory.rollout_logprobs[1:])
        assert (recomputed - stored)[is_sampled].abs().max() <= 1e-5


async def play(config: RunConfig, number: int) -> list[Trajectory]:
    """Return episodes of the agent with the untrained policy."""
    engine = TransformersEngine(config.model, config.rollout, max_tokens=512)
    tokens = ChatTokens.of_model(config.model, [])
    rows = [json.loads(line) for line in islice(PROBLEMS, number)]
    with ThreadPoolExecutor(2) as threads:
        episodes = AgentEpisodes(config.agent_loop.agent, config.rollout, tokens, threads, max_row_tokens=512)
        await engine.start()
        await episodes.start()
        try:
            requests = [
                EpisodeRequest(
                    trajectory_id=f"1-p{index}-0",
                    prompt=Prompt(prompt_id=f"p{index}", messages=row["prompt"], answer=row["answer"]),
                    sample_index=0,
                    seed=f"0/{index}",
                )
                for index, row in enumerate(rows)
            ]
            return await asyncio.gather(*(episodes.run(request, engine) for request in requests))
        finally:
            await episodes.aclose()
            await engine.aclose()


@pytest.mark.ray
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_its_policy_learns(tmp_path: Path):
    """From 0.36 to 0.81 in 20 updates, with a standard error of 0.03."""
    finish_run(tmp_path / "run", "run.num_steps=20", "validation.every_steps=20", config=CONFIG, timeout_s=800)
    rows = metrics(tmp_path / "run")
    first, last = (value for row in rows if (value := row.get("validation/accuracy")) is not None)
    assert first <= 0.45
    assert last >= 0.7
