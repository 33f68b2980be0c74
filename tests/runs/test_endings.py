"""However a run ends, nothing of it stays behind, and the same command resumes from its last checkpoint."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from agentrl.checkpoints.writer import ROLLOUTS
from agentrl.config.load import load_run_config
from agentrl.data.prompts import PromptDataset
from agentrl.trajectories.store import read_trajectories
from tests.runners.run_process import (
    SIGNALS,
    SMALL,
    RunProcess,
    alive,
    finish_run,
    listeners,
    listeners_of,
    metrics,
    running,
    steps,
    wait_until,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def left_in(folder: Path) -> list[Path]:
    """Return the temporary folders of runs."""
    return list(folder.glob("agentrl-*"))


def end_and_look(run: RunProcess, name: str, *, whole_group: bool = False) -> None:
    """End the run by a signal, after which no process, no socket that listens, no folder and no shared memory may be left."""
    family = run.family()
    sockets = listeners_of(family)
    assert len(family) > 8, "judge, slots, Ray and its workers were expected"
    assert len(sockets) > 2
    shared_memory = run.open_shared_memory()
    (run.signal_group if whole_group else run.signal)(SIGNALS[name])
    assert wait_until(lambda: not alive(family)), alive(family)
    assert wait_until(lambda: not sockets.keys() & listeners().keys()), sockets
    code = run.process.wait(timeout=100)
    assert wait_until(lambda: not left_in(run.temp_dir)), left_in(run.temp_dir)
    assert code == (-signal.SIGKILL if name == "SIGKILL" else 128 + SIGNALS[name]), run.output()
    output = run.output()
    assert "Traceback" not in output
    assert name == "SIGKILL" or f"stopped by {name}; the same command resumes" in output
    if os.getuid() == 0:
        assert wait_until(lambda: not os.listdir(shared_memory)), os.listdir(shared_memory)
    os.close(shared_memory)


def test_an_exception_in_a_worker_ends_the_run_with_its_reason_and_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "bad_reward.py").write_text(
        "class BadReward:\n"
        "    def __init__(self, config): ...\n"
        "    async def start(self): ...\n"
        "    async def score(self, prompt, turns, *, deadline): raise ZeroDivisionError('a bug in my reward')\n"
        "    async def aclose(self): ...\n"
    )
    (tmp_path / "run.yaml").write_text((Path("configs") / "demo.yaml").read_text())
    overrides = [*SMALL, "reward.class_name=bad_reward.BadReward", "run.num_steps=3"]
    with running(tmp_path / "run", *overrides, config=str(tmp_path / "run.yaml")) as run:
        output, _ = run.process.communicate(timeout=550)
        assert wait_until(lambda: not left_in(run.temp_dir)), left_in(run.temp_dir)
    assert run.process.returncode == 1
    assert "a bug in my reward" in output
    assert not any(folder.stat().st_mode & 0o022 for folder in (tmp_path / "run" / "ray_logs").glob("**/"))


_HELD_REWARD = """
import asyncio
import json
from pathlib import Path

from agentrl.rewards.math_answer import MathAnswerReward


class HeldReward(MathAnswerReward):
    def __init__(self, config):
        super().__init__({})
        self._let_through = set(json.loads(Path(config["let_through"]).read_text()))

    async def score(self, prompt, turns, *, deadline):
        if prompt.prompt_id not in self._let_through:
            await asyncio.Event().wait()
        return await super().score(prompt, turns, deadline=deadline)
"""
"""Never scores any but the prompts that a file names: however slow or fast the machine, the run stands still behind them."""

_PROMPTS_PER_STEP = 4
"""Prompts per step of `SMALL`."""


def prompts_of_the_demo() -> PromptDataset:
    data = load_run_config("configs/demo.yaml").config.data
    return PromptDataset(
        data.train_files, prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=1
    )


def let_through(file: Path, num_prompts: int) -> None:
    file.write_text(json.dumps([prompt.prompt_id for prompt in prompts_of_the_demo().take(num_prompts)]))


def end_after(
    step: int,
    checkpoints: list[str],
    name: str,
    run_dir: Path,
    *arguments: str,
    config: str,
    whole_group: bool = False,
) -> None:
    """Start a run that stands still after `step`, and end it when the last of `checkpoints` counts; they are all it has."""
    # Tests beside this one have shared memory too, and only root can tell it apart.
    with running(run_dir, *arguments, config=config, own_shared_memory=os.getuid() == 0) as run:
        run.wait_for_step(step)
        for folder in checkpoints:
            assert wait_until((run_dir / "checkpoints" / folder / "state.json").is_file, timeout_s=500), run.output()
        end_and_look(run, name, whole_group=whole_group)
    assert steps(run_dir)[-1] == step
    assert [folder.name for folder in run_dir.glob("checkpoints/step_*")] == checkpoints


@pytest.mark.timeout(1800)  # three runs, each with the time of the one run of the test above
@pytest.mark.parametrize(
    ("max_staleness", "early"), [pytest.param(0, "SIGINT", marks=pytest.mark.soak), (2, "SIGTERM")]
)
def test_a_run_ended_by_a_signal_leaves_nothing_behind_and_the_same_command_consumes_each_prompt_once(
    max_staleness: int, early: str, tmp_path: Path
):
    """Before the first checkpoint it starts over, after that it goes on from the last one, here behind a kill -9."""
    run_dir, named = tmp_path / "run", tmp_path / "let_through.json"
    (tmp_path / "held_reward.py").write_text(_HELD_REWARD)
    (tmp_path / "run.yaml").write_text((Path("configs") / "demo.yaml").read_text())
    config = str(tmp_path / "run.yaml")
    arguments = [*SMALL, "run.num_steps=6", "checkpoint.every_steps=3", "data.shuffle=true"]
    arguments += [f"rollout.max_staleness={max_staleness}", "reward.timeout_s=3600"]
    arguments += ["reward.class_name=held_reward.HeldReward", f"reward.config.let_through={named}"]
    let_through(named, _PROMPTS_PER_STEP)
    end_after(1, [], early, run_dir, *arguments, config=config, whole_group=early == "SIGTERM")
    let_through(named, 4 * _PROMPTS_PER_STEP)
    end_after(4, ["step_000003"], "SIGKILL", run_dir, *arguments, config=config)
    in_hand = json.loads((run_dir / "checkpoints" / "step_000003" / ROLLOUTS / "groups.json").read_text())
    assert len(in_hand) == max_staleness * _PROMPTS_PER_STEP
    assert not all(group["is_whole"] for group in in_hand) or max_staleness == 0, "what stood still was not finished"
    let_through(named, len(prompts_of_the_demo()))
    output = finish_run(run_dir, *arguments, config=config)
    assert "resumed from" in output
    assert steps(run_dir) == [0, 1, 2, 3, 4, 5, 6]
    rolled_out = Counter(
        trajectory.prompt_id
        for file in (run_dir / "trajectories").glob("step_*.atr")
        for trajectory in read_trajectories(file)
    )
    assert set(rolled_out.values()) == {8}
    state = json.loads((run_dir / "checkpoints" / "step_000006" / "state.json").read_text())
    prompts = prompts_of_the_demo().take(state["prompts_taken"])
    assert set(rolled_out) == {prompt.prompt_id for prompt in prompts}
    if max_staleness:
        staleness = [row["rollout/staleness_max"] for row in metrics(run_dir)[1:]]
        assert max(number or 0 for number in staleness) == max_staleness
