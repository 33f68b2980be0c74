"""However a run ends, nothing of it stays behind, and the same command goes on from its last checkpoint."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.data.prompts import PromptDataset
from agentrl.trajectories.store import read_trajectories
from tests.runners.run_process import (
    SIGNALS,
    SMALL,
    RunProcess,
    alive,
    can_bind,
    finish_run,
    listening_ports,
    metrics,
    run_folders,
    running,
    shared_memory_files,
    steps,
    wait_until,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def assert_nothing_is_left(run: RunProcess, end) -> None:
    """End the run by `end` and look for processes, ports, shared memory and temporary files 30 seconds later at most."""
    family = run.family()
    ports = listening_ports(family)
    assert len(family) > 8, "judge, slots, Ray and its workers were expected"
    assert len(ports) > 2
    end()
    assert wait_until(lambda: not alive(family), timeout_s=30), alive(family)
    assert wait_until(lambda: all(can_bind(port) for port in ports), timeout_s=5)


@pytest.mark.parametrize(("name", "max_staleness"), [*((name, 0) for name in SIGNALS), ("SIGTERM", 2)])
def test_a_signal_leaves_nothing_behind(name: str, max_staleness: int, tmp_path: Path):
    folders, shared_memory = run_folders(), shared_memory_files()
    with running(tmp_path / "run", *SMALL, "run.num_steps=100", f"rollout.max_staleness={max_staleness}") as run:
        run.wait_for_step(1)
        assert_nothing_is_left(run, lambda: run.signal(SIGNALS[name]))
        code = run.process.wait(timeout=30)
        output = run.output()
    assert code == (-signal.SIGKILL if name == "SIGKILL" else 128 + SIGNALS[name])
    assert "Traceback" not in output
    assert wait_until(lambda: run_folders() <= folders, timeout_s=30)
    assert wait_until(lambda: shared_memory_files() <= shared_memory, timeout_s=10), (
        shared_memory_files() - shared_memory
    )


def test_an_exception_in_a_worker_ends_the_run_with_its_reason_and_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "bad_reward.py").write_text(
        "class BadReward:\n"
        "    def __init__(self, config): ...\n"
        "    async def start(self): ...\n"
        "    async def score(self, prompt, turns, *, deadline): raise ZeroDivisionError('a bug in my reward')\n"
        "    async def aclose(self): ...\n"
    )
    (tmp_path / "run.yaml").write_text((Path("configs") / "demo.yaml").read_text())
    folders = run_folders()
    overrides = [*SMALL, "reward.class_name=bad_reward.BadReward", "run.num_steps=3"]
    with running(tmp_path / "run", *overrides, config=str(tmp_path / "run.yaml")) as run:
        output, _ = run.process.communicate(timeout=180)
    assert run.process.returncode == 1
    assert "a bug in my reward" in output
    assert wait_until(lambda: run_folders() <= folders, timeout_s=30)


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_kill_9_and_the_same_command_again_consume_each_prompt_once(tmp_path: Path, max_staleness: int):
    run_dir = tmp_path / "run"
    arguments = [*SMALL, "run.num_steps=6", "data.shuffle=true", f"rollout.max_staleness={max_staleness}"]
    with running(run_dir, *arguments) as run:
        run.wait_for_step(3)  # the last checkpoint is that of step 2
        family = run.family()
        run.signal(signal.SIGKILL)
        run.process.wait()
    assert wait_until(lambda: not alive(family), timeout_s=30), alive(family)
    output = finish_run(run_dir, *arguments)
    assert "resumed from" in output
    assert steps(run_dir) == [0, 1, 2, 3, 4, 5, 6]
    rolled_out = Counter(
        trajectory.prompt_id
        for file in (run_dir / "trajectories").glob("step_*.jsonl")
        for trajectory in read_trajectories(file)
    )
    assert set(rolled_out.values()) == {8}
    state = json.loads((run_dir / "checkpoints" / "step_000006" / "state.json").read_text())
    data = load_run_config("configs/demo.yaml").config.data
    prompts = PromptDataset(
        data.train_files, prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=1
    )
    assert set(rolled_out) == {prompt.prompt_id for prompt in prompts.take(state["prompts_taken"])}
    if max_staleness:
        staleness = [row["rollout/staleness_max"] for row in metrics(run_dir)[1:]]
        assert max(number or 0 for number in staleness) == max_staleness


def test_kill_9_before_the_first_checkpoint_starts_over(tmp_path: Path):
    run_dir = tmp_path / "run"
    arguments = [*SMALL, "run.num_steps=2"]
    with running(run_dir, *arguments) as run:
        run.wait_for_step(1)
        run.signal(signal.SIGKILL)
    finish_run(run_dir, *arguments)
    assert steps(run_dir) == [0, 1, 2]
