"""Folders of evaluations that no model has made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.relations import Purpose
from agentrl.pages.page import installed_versions, now_text
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import (
    Failure,
    FailureClass,
    Prompt,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)

REWARD = "reward.class_name=agentrl.rewards.code_tests.CodeTestsReward"


def prompt(prompt_id: str, *, answer: str = "5", data_set: str = "sums", text: str = "2 + 3?", **extra: Any) -> Prompt:
    messages = [{"role": "user", "content": text}]
    return Prompt(prompt_id=prompt_id, messages=messages, answer=answer, data_set=data_set, extra=extra)


def trajectory(prompt_id: str, index: int, reward: float | None, text: str = "", **others: Any) -> Trajectory:
    """Return a trajectory with one turn; without a reward it is lost to the infrastructure."""
    answer = text or (r"\boxed{5}" if reward else r"\boxed{6}")
    facts: dict[str, Any] = {
        "termination": Termination.ANSWERED if reward is not None else Termination.INFRA_ERROR,
        "turns": (Turn(text=answer),),
        "failures": () if reward is not None else (Failure(failure_class=FailureClass.ENGINE, message="it died"),),
    }
    return Trajectory(
        trajectory_id=f"0-{prompt_id}-{index}",
        prompt_id=prompt_id,
        sample_index=index,
        token_ids=[1, 2, 3],
        num_prompt_tokens=2,
        response_mask=[0, 0, 1],
        rollout_logprobs=[0.0, 0.0, -0.5],
        version_spans=((2, 0),),
        reward=reward,
        **(facts | others),
    )


def tool_turn(name: str, text: str) -> Turn:
    call = ToolCall(call_id="1", name=name)
    return Turn(text="calls", calls=(call,), results=(ToolResult(status=ToolStatus.ERROR, text=text),))


def evaluation_folder(
    folder: Path, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory], *words: str, finished: bool = True
) -> RunConfig:
    """Write what an evaluation leaves behind, and return its config."""
    words = (f"run.dir={folder}", "reward.answer_format=boxed", *words)
    config = load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION).config
    TrajectoryStore(folder).append(0, trajectories, prompts=prompts, validation=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump()))
    if finished:
        (folder / "result.json").write_bytes(orjson.dumps(result(len(prompts), config)))
    return config


def result(num_prompts: int, config: RunConfig) -> Mapping[str, Any]:
    return {
        "model": "models/policy",
        "num_prompts": num_prompts,
        "samples_per_prompt": config.validation.samples_per_prompt,
        "num_lost": 0,
        "num_rolled_out": 1,
        "wall_time_s": 2.5,
        "versions": installed_versions(),
        "finished_at": now_text(),
        "metrics": {},
    }
