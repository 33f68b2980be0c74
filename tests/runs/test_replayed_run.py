"""Every stage of real runs is replayed from their records: with nothing changed all is equal, and what is changed is found."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.replay.recorded_run import RecordedRun
from agentrl.replay.rescoring import scores_file
from agentrl.runners.replay import call_tools, rescore_all, select_all, update_all, verify
from agentrl.trajectories.store import TrajectoryStore, read_prompts, read_trajectories
from agentrl.types import ToolResult, ToolStatus
from tests.runners.run_process import SMALL, finish_run

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

KEPT = ("run.num_steps=2", "checkpoint.every_steps=1", "checkpoint.keep_last=5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("replay") / "run"
    finish_run(run_dir, *SMALL, *KEPT)
    return run_dir


def recorded(run_dir: Path, *overrides: str) -> RecordedRun:
    words = [*SMALL, *KEPT, f"run.dir={run_dir}", *overrides]
    return RecordedRun(load_run_config("configs/demo.yaml", words, purpose=Purpose.EXPORT))


async def test_the_record_agrees_with_itself_and_with_the_selection(finished: Path):
    assert await verify(recorded(finished), [])
    assert await select_all(recorded(finished), [])


async def test_the_same_reward_gives_the_same_and_another_one_is_compared(
    finished: Path, capsys: pytest.CaptureFixture[str]
):
    same = recorded(finished)
    assert await rescore_all(same, [1])
    lines = scores_file(same).read_text().splitlines()
    assert await rescore_all(same, []), "the first step's scores are in the file"
    assert scores_file(same).read_text().splitlines()[: len(lines)] == lines
    other = recorded(finished, "reward.answer_format=hashes")
    assert not await rescore_all(other, [])
    assert "-> 0;" in capsys.readouterr().out, "no answer has the other format"


async def test_the_tools_answer_the_recorded_calls_the_same_and_a_changed_answer_is_shown(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert await call_tools(recorded(finished), [2])
    run_dir = tmp_path / "run"
    changed = TrajectoryStore(run_dir)
    file = TrajectoryStore(finished).file(2)
    [called, *_] = [trajectory for trajectory in read_trajectories(file) if trajectory.tool_results]
    answer = ToolResult(status=ToolStatus.OK, text="another answer")
    turns = [replace(turn, results=(answer,) * len(turn.results)) for turn in called.turns]
    changed.append(2, [replace(called, turns=tuple(turns))], prompts=read_prompts(file).values())
    assert not await call_tools(recorded(run_dir), [])
    assert "ok, 'another answer' -> " in capsys.readouterr().out


def replay_in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.runners.replay", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_an_update_is_equal_bit_for_bit_and_another_learning_rate_is_found(finished: Path):
    words = ("update", "configs/demo.yaml", *SMALL, *KEPT, f"run.dir={finished}", "--step", "2")
    same = replay_in_a_process(*words)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "of which 0 differ; state after the update: equal" in same.stdout
    other = replay_in_a_process(*words, "actor.learning_rate=0.001")
    assert other.returncode == 1, other.stdout + other.stderr
    assert "actor/learning_rate: " in other.stdout
    assert "state after the update: differs first at actor: " in other.stdout


def test_the_first_update_with_a_critic_is_equal_bit_for_bit(tmp_path: Path):
    run_dir = tmp_path / "run"
    small = ("rollout.prompts_per_step=4", "rollout.samples_per_prompt=8", "validation.every_steps=0")
    kept = (*small, "run.num_steps=1", "checkpoint.every_steps=1")
    finish_run(run_dir, *kept, config="configs/demo_ppo.yaml")
    words = ("update", "configs/demo_ppo.yaml", *kept, f"run.dir={run_dir}", "--step", "1")
    same = replay_in_a_process(*words)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "of which 0 differ; state after the update: equal" in same.stdout


async def test_what_cannot_be_replayed_is_refused_with_the_way_out(finished: Path):
    with pytest.raises(ConfigError, match="--step: 7 is not recorded"):
        await verify(recorded(finished), [7])
    with pytest.raises(ConfigError, match="holds no recorded step"):
        recorded(finished / "elsewhere")
    with pytest.raises(ConfigError, match="name the update with `--step N`"):
        await update_all(recorded(finished), [])
    with pytest.raises(ConfigError, match=r"needs the checkpoint of step 1, and .* has: none"):
        await update_all(recorded(finished, f"checkpoint.dir={finished}/nowhere"), [2])
    with pytest.raises(ConfigError, match="the selection differs, first at"):
        await update_all(recorded(finished, "run.seed=5"), [2])
