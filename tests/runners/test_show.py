"""The records of a run in a terminal, from a folder that this file writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.runners.show import show
from agentrl.timing import Span
from agentrl.trajectories.codec import decode_trajectory, encode_trajectory
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Prompt, Termination, ToolCall, ToolResult, ToolStatus, Trajectory, Turn

PROMPT = Prompt(prompt_id="p1", messages=[{"role": "user", "content": "What is 2 + 3?"}], answer="5")
RIGHT = Trajectory(
    trajectory_id="7-p1-0",
    prompt_id="p1",
    sample_index=0,
    token_ids=[5, 6, 7],
    num_prompt_tokens=1,
    response_mask=[0, 1, 1],
    rollout_logprobs=[float("nan"), -0.5, -0.25],
    version_spans=((1, 6),),
    turns=(
        Turn(
            text="I add.\nTwice.",
            calls=(ToolCall(call_id="0", name="calc"),),
            results=(ToolResult(status=ToolStatus.ERROR, text="no", wall_time_s=0.25),),
            sampled=Span(started_at=1.0, ended_at=1.5),
        ),
        Turn(text="five"),
    ),
    termination=Termination.ANSWERED,
    reward=1.0,
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    store = TrajectoryStore(tmp_path)
    lost = replace(RIGHT, trajectory_id="7-p1-1", termination=Termination.INFRA_ERROR, reward=None, turns=())
    store.append(7, [RIGHT, lost], prompts=[PROMPT])
    store.record_fates(7, {"trained": ["7-p1-0"], "unscored": ["7-p1-1"]})
    store.append(7, [replace(RIGHT, reward=0.0)], prompts=[PROMPT], validation=True)
    return tmp_path


def test_each_step_is_a_line(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    show(run_dir, None)
    title, step, validation = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["step", "trajectories", "mean"]
    assert step.split() == ["step_000007", "2", "1", "1", "1", "1", "6"]
    assert validation.split() == ["validation_000007", "1", "0", "0", "1", "1", "3"]


def test_each_trajectory_of_a_step_is_a_line(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    show(run_dir, "7")
    _, right, lost = capsys.readouterr().out.splitlines()
    assert right.split() == ["7-p1-0", "1", "answered", "2", "1", "1", "3", "0", "trained"]
    assert lost.split()[:2] == ["7-p1-1", "infra_error"]


def test_a_conversation_is_shown_whole_with_its_times(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    show(run_dir, "7-p1-0")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "step_000007: 7-p1-0, reward 1, ended by `answered`",
        "  user: What is 2 + 3?",
        "  policy (0.50 s): I add.",
        "      Twice.",
        "  tool calc (error, 0.25 s): no",
        "  policy: five",
        "  reference: 5",
        "validation_000007: 7-p1-0, reward 0, ended by `answered`",
    ]


def test_json_lines_hold_every_field(run_dir: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    show(run_dir, "validation_7", as_json=True)
    prompt, trajectory = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert prompt["messages"] == PROMPT.messages
    assert encode_trajectory(decode_trajectory(trajectory)) == encode_trajectory(replace(RIGHT, reward=0.0))


def test_what_is_not_there_is_named(run_dir: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no such step; the run has step_000007 to validation_000007"):
        show(run_dir, "8")
    with pytest.raises(ConfigError, match="7-p2-0: no trajectory has this id"):
        show(run_dir, "7-p2-0")
    with pytest.raises(ConfigError, match="no recorded trajectories"):
        show(tmp_path / "elsewhere", None)
