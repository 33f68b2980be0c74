"""Small run folders for the dashboard's tests."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.observability.metrics_file import MetricsFile
from agentrl.timing import Span
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import Prompt, Termination, ToolCall, ToolResult, ToolStatus, Trajectory, Turn

NUM_PROMPT_TOKENS, NUM_SAMPLED = 3, 4
TURN = Turn(
    text="I compute.",
    calls=(ToolCall(call_id="0", name="python", arguments={"code": "print(2 + 3)\n"}),),
    results=(ToolResult(status=ToolStatus.OK, text="5", wall_time_s=0.3, queue_s=0.1),),
    sampled=Span(started_at=1000.0, ended_at=1000.5, queue_s=0.1),
    answered=Span(started_at=1000.5, ended_at=1000.8),
)
FAILED = ToolResult(status=ToolStatus.ERROR, text="Traceback: no", wall_time_s=0.2)


def prompt(number: int) -> Prompt:
    """Return prompt `p<number>`."""
    return Prompt(prompt_id=f"p{number}", messages=[{"role": "user", "content": f"What is {number} + 3?"}], answer="5")


def trajectory(step: int, number: int, sample: int, **fields: Any) -> Trajectory:
    """Return a sample of a prompt with seven tokens and one call; every second sample is right, every third call fails."""
    turn = replace(TURN, results=(FAILED,)) if sample % 3 == 2 else TURN
    values = {
        "trajectory_id": f"{step}-p{number}-{sample}",
        "prompt_id": f"p{number}",
        "sample_index": sample,
        "token_ids": [11, 12, 13, 21, 22, 23 + sample, 24],
        "num_prompt_tokens": NUM_PROMPT_TOKENS,
        "response_mask": [0] * NUM_PROMPT_TOKENS + [1] * NUM_SAMPLED,
        "rollout_logprobs": [math.nan] * NUM_PROMPT_TOKENS + [-0.1, -0.5, -2.0, -0.01],
        "version_spans": ((NUM_PROMPT_TOKENS, step - 1),),
        "turns": (turn, Turn(text="The answer is 5.", sampled=Span(started_at=1000.8, ended_at=1001.0))),
        "termination": Termination.ANSWERED,
        "reward": float(sample % 2),
        "reward_metrics": {"format": 1.0},
        "wall_time_s": 1.0 + sample,
        "span": Span(started_at=1000.0, ended_at=1001.0 + sample),
        "scored": Span(started_at=1001.0, ended_at=1001.2),
    }
    return Trajectory(**values | fields)


def write_step(run_dir: Path, step: int, *, num_prompts: int = 2, num_samples: int = 4) -> None:
    """Append the trajectories and the metrics of a step."""
    samples = [trajectory(step, number, sample) for number in range(num_prompts) for sample in range(num_samples)]
    write_trajectories(run_dir, step, samples, [prompt(number) for number in range(num_prompts)])
    MetricsFile(run_dir / "metrics.jsonl").append(
        step, {"rollout/reward_mean": 0.5 + step / 100, "rollout/tool_success_rate": math.nan, "time/step_s": 2.0}
    )


def write_trajectories(run_dir: Path, step: int, samples: Iterable[Trajectory], prompts: Iterable[Prompt] = ()) -> Path:
    """Append trajectories alone, and return the file."""
    return TrajectoryStore(run_dir).append(step, samples, prompts=prompts)


def write_run(run_dir: Path, *, num_steps: int = 2, finished: bool = True) -> Path:
    """Write a run, and return its folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(
        f"run: {{dir: {run_dir}, num_steps: {num_steps}, seed: 1}}\nmodel: {{path: no}}\n"
    )
    (run_dir / "run.log").write_text("12:00:00 INFO step 1\n12:00:01 ERROR the engine died\n")
    for step in range(1, num_steps + 1):
        write_step(run_dir, step)
    if finished:
        (run_dir / "result.json").write_text(json.dumps({"num_steps": num_steps}))
    return run_dir
