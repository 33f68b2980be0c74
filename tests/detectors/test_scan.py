"""Scans of whole runs: planted faults raise the curve at their step, and processes see what one process sees."""

import random
import sys
from pathlib import Path

import pytest

from agentrl.detectors import scan
from agentrl.detectors.curves import Curve, curves_of
from agentrl.detectors.scan import scan_files, scan_in_processes
from agentrl.detectors.shipped import SHIPPED
from agentrl.trajectories.store import TrajectoryStore
from agentrl.types import ToolStatus, Trajectory, Turn
from tests.detectors.episodes import PROMPT, answered, called, episode

NUM_STEPS, NUM_TRAJECTORIES, FAULT_STEP = 20, 40, 12
HONEST = [called("print(996 - 955)", "41"), answered("41")]
FAULTS = {
    "repeated_text": [answered("41", "So the answer is 41. " * 8)],
    "copied_answer": [called("import math\nmath.sqrt(2)\nprint(41)", "41"), answered("41")],
    "constant_print": [called("print('hm')", "hm"), answered("41")],
    "empty_reasoning": [answered("41", "<think>\n\n</think>")],
    "language_switch": [answered("41", "所以我们需要计算九百九十六减去九百五十五")],
    "ignored_error": [called("print(", "SyntaxError", ToolStatus.ERROR), answered("41")],
}


def recorded(folder: Path, fault: list[Turn], *, num_tokens: int = 20, rate: float = 0.5) -> list[Path]:
    """A run in which `rate` of the trajectories have a fault, and its reward, from `FAULT_STEP` on; 1 in 40 before."""
    generator = random.Random(7)
    store = TrajectoryStore(folder)
    files = []
    for step in range(1, NUM_STEPS + 1):
        trajectories: list[Trajectory] = []
        for index in range(NUM_TRAJECTORIES):
            is_fault = generator.random() < (rate if step >= FAULT_STEP else 1 / 40)
            turns, reward = (fault, 1.0) if is_fault else (HONEST, float(generator.random() < 0.3))
            length = num_tokens if is_fault else generator.randint(15, 25)
            name = f"{step}-p-{index}"
            trajectories.append(episode(*turns, name=name, reward=reward, num_tokens=length))
        files.append(store.append(step, trajectories, prompts=[PROMPT]))
    return files


def curve_of(files: list[Path], name: str) -> Curve:
    detectors = [detector for detector in SHIPPED if detector.name == name]
    [curve] = curves_of(scan_files(files, detectors), detectors)
    return curve


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_raises_its_curve_at_its_step(name: str, tmp_path: Path):
    curve = curve_of(recorded(tmp_path, FAULTS[name]), name)
    change = curve.changes[0]
    assert (change.step, change.before < 0.1, 0.35 < change.after < 0.65) == (FAULT_STEP, True, True)
    assert curve.mean_hit_reward == 1.0
    assert curve.mean_other_reward == pytest.approx(0.3, abs=0.06)
    assert len(curve.examples) == 3


def test_growing_length_raises_its_curve_at_its_step(tmp_path: Path):
    curve = curve_of(recorded(tmp_path, HONEST, num_tokens=40), "long_response")
    assert curve.threshold is not None
    assert 22 <= curve.threshold <= 25
    assert curve.changes[0].step == FAULT_STEP


def test_an_honest_run_has_no_hit_and_no_change(tmp_path: Path):
    files = recorded(tmp_path, HONEST)
    curves = curves_of(scan_files(files, SHIPPED), SHIPPED)
    assert [curve.changes for curve in curves] == [[]] * len(curves)
    assert [curve.name for curve in curves if curve.num_hit] == ["long_response"]


def test_trajectories_without_a_reward_are_in_the_share_and_not_in_the_means(tmp_path: Path):
    fault = FAULTS["ignored_error"]
    trajectories = [episode(*fault, reward=None), episode(*fault, reward=0.25), episode(*HONEST, reward=None)]
    curve = curve_of([TrajectoryStore(tmp_path).append(3, trajectories, prompts=[PROMPT])], "ignored_error")
    [point] = curve.points
    assert (point.num_hit, point.num_trajectories, point.hit_reward, point.other_reward) == (2, 3, 0.25, None)


@pytest.mark.slow
def test_processes_find_what_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_processes.py").write_text(
        "def is_odd(trajectory, prompt):\n    return len(trajectory.turns) % 2 == 1\n"
    )
    config = tmp_path / "detectors.yaml"
    config.write_text("- {name: odd, class_name: in_processes.is_odd}\n- {name: box, regex: boxed}\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    files = recorded(tmp_path, FAULTS["repeated_text"])
    alone = scan_in_processes(files, config)
    monkeypatch.setattr(scan, "_BYTES_PER_PROCESS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert scan_in_processes(files, config) == alone
    assert sum(map(sum, (step.values["odd"] for step in alone))) > 100
