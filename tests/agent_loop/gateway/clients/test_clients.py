"""Programs of examples/agents as they are, against a gateway with a scripted policy."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.agent_loop.gateway.agents import ProgramAgent
from agentrl.agent_loop.gateway.history import ForkReason
from agentrl.types import Trajectory
from tests.agent_loop.gateway.gateway_stage import GatewayStage, rows_of
from tests.fakes import ScriptedEngine

pytestmark = pytest.mark.slow

PROGRAMS = Path("examples/agents").absolute()
ANSWER = "It is 11637."
CALC = '{"name": "calc", "arguments": {"a": 431, "b": 27}}'
FINAL = f'{{"name": "final_answer", "arguments": {{"answer": "{ANSWER}"}}}}'
SHELL = '{"name": "bash", "arguments": {"command": "echo $((431 * 27))"}}'
SUBMIT = f'{{"name": "bash", "arguments": {{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {ANSWER}"}}}}'
"""Calls of the policy."""


async def play(
    stage: GatewayStage, python: Path, program: str, turns: Sequence[str], **agent: bool
) -> tuple[Trajectory, list[list[int]]]:
    """Return the trajectory, and the prompts that the engine got."""
    engine = ScriptedEngine([stage.ids(turn) for turn in turns])
    player = ProgramAgent([str(python), str(PROGRAMS / program), "{prompt}"])
    trajectory = await stage.play(
        None, engine, player=player, trajectory_timeout_s=120, agent=agent, max_row_tokens=8000
    )
    return trajectory, [call.token_ids for call in engine.calls]


def call(text: str) -> str:
    return f"Let me see.\n<tool_call>\n{text}\n</tool_call>"


@pytest.mark.parametrize(
    ("program", "turns"),
    [
        ("openai_sdk.py", [call(CALC), ANSWER]),
        ("openai_agents.py", [call(CALC), ANSWER]),
        ("pydantic_ai_agent.py", [call(CALC), ANSWER]),
        ("langgraph_agent.py", [call(CALC), ANSWER]),
        ("anthropic_sdk.py", [call(CALC), ANSWER]),
        ("mini_swe.py", [call(SHELL), call(SUBMIT)]),
    ],
)
async def test_an_agent_is_recorded_token_for_token_without_forks(
    stage: GatewayStage, client_python: Path, program: str, turns: list[str]
):
    trajectory, prompts = await play(stage, client_python, program, turns)
    ((ids, mask),) = rows_of(trajectory)
    sampled = [stage.ids(turn) for turn in turns]
    # The row is the last prompt and the last turn, and that prompt begins with all that came before.
    assert ids == prompts[-1] + sampled[-1]
    assert prompts[1][: len(prompts[0] + sampled[0])] == prompts[0] + sampled[0]
    assert [token for token, is_sampled in zip(ids, mask, strict=True) if is_sampled] == sampled[0] + sampled[1]
    assert not stage.report.forks
    assert "11637" in trajectory.turns[0].results[0].text


async def test_smolagents_sends_calls_as_text_and_continues_by_their_ids(stage: GatewayStage, client_python: Path):
    turns = [call(CALC), f"<tool_call>\n{FINAL}\n</tool_call>"]
    trajectory, _ = await play(stage, client_python, "smolagents_agent.py", turns)
    assert stage.report.forks == {ForkReason.ANSWER: 1}
    assert len(rows_of(trajectory)) == 2
    trajectory, prompts = await play(stage, client_python, "smolagents_agent.py", turns, continue_by_id=True)
    assert not stage.report.forks
    ((ids, _),) = rows_of(trajectory)
    assert ids == prompts[-1] + stage.ids(turns[-1])
