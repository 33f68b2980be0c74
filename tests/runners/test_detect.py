"""The detectors' curves in a terminal and as JSON; docs/detectors.md as it is written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.runners.detect import detect
from agentrl.trajectories.store import TrajectoryStore
from tests.detectors.episodes import PROMPT, answered, called, episode

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "detectors.md").read_text()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    honest, copied = called("print(996 - 955)", "41"), called("print(996185)", "996185")
    store = TrajectoryStore(tmp_path / "run")
    for step in range(1, 9):
        trajectories = [
            episode(honest, answered("41"), name=f"{step}-p-{index}", reward=0.5)
            if index >= step
            else episode(copied, answered("996185"), name=f"{step}-p-{index}", reward=1.0)
            for index in range(8)
        ]
        store.append(step, trajectories, prompts=[PROMPT])
    return tmp_path / "run"


def test_each_detector_has_its_curve_rewards_and_examples(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    detect(run_dir)
    shown = dict(block.split(": ", 1) for block in capsys.readouterr().out.strip().split("\n\n"))
    copied = [line.strip() for line in shown["copied_answer"].splitlines()[1:]]
    assert copied == [
        "share hit, 0 to 100.0%  ▂▃▄▅▅▆▇█  step 1: 12.5%, step 8: 100.0%",
        "reward where hit        ████████  1.000 in all",
        "reward elsewhere        ▅▅▅▅▅▅▅   0.500 in all",
        "changed most            no change beyond chance",
        "such as                 1-p-0, 6-p-3, 8-p-7",
    ]
    assert shown["language_switch"].splitlines()[1] == "  no hit in 64 trajectories"


def test_json_lines_hold_every_point(run_dir: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    detect(run_dir, as_json=True)
    curves = {curve["name"]: curve for curve in map(json.loads, capfdbinary.readouterr().out.splitlines())}
    assert curves["copied_answer"]["points"][1] == {
        "step": 2,
        "num_hit": 2,
        "num_trajectories": 8,
        "share": 0.25,
        "hit_reward": 1.0,
        "other_reward": 0.5,
    }


def test_a_folder_without_a_record_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no recorded trajectories"):
        detect(tmp_path)


def test_a_detector_that_was_given_up_is_an_error_after_the_curves_of_the_others(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.path", [*sys.path])
    (run_dir / "fails_always.py").write_text("def bad(trajectory, prompt):\n    return 1 / 0\n")
    (run_dir / "detectors.yaml").write_text("- {name: bad, class_name: fails_always.bad}\n")
    with pytest.raises(
        DataError, match=r"1 of 8 detectors were given up. `bad`: 1-p-0: ZeroDivisionError at fails_always"
    ):
        detect(run_dir, run_dir / "detectors.yaml")
    assert "bad: fails_always.bad\n  given up at 1-p-0: ZeroDivisionError" in capsys.readouterr().out


def test_the_detectors_of_the_page_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_detectors", raising=False)
    for name in ("detectors.yaml", "my_detectors.py"):
        block = re.search(rf"^```\w+\n# {name}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
        assert block is not None
        (run_dir / name).write_text(block[1])
    detect(run_dir, run_dir / "detectors.yaml")
    shown = capsys.readouterr().out
    assert "answers_at_once: " in shown
    assert "apology: `(?i)i apologi[sz]e` in the text of the policy" in shown


def test_the_page_names_every_shipped_detector():
    from agentrl.detectors.shipped import SHIPPED

    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == [detector.name for detector in SHIPPED]


@pytest.mark.slow
def test_ctrl_c_ends_a_scan_in_processes_within_seconds_and_without_a_traceback(run_dir: Path):
    started = run_dir / "started"
    (run_dir / "waits_long.py").write_text(
        "import pathlib, time\n"
        f"def wait(trajectory, prompt):\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(600)\n"
    )
    (run_dir / "detectors.yaml").write_text("- {name: waits, class_name: waits_long.wait}\n")
    code = (
        "import os, sys; from agentrl.detectors import scan; from agentrl.runners.detect import main\n"
        "scan._BYTES_PER_PROCESS, os.cpu_count = 1, lambda: 2\n"
        f"sys.argv[1:] = [{str(run_dir)!r}, '--config', {str(run_dir / 'detectors.yaml')!r}]\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_until(started.exists)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def wait_until(is_true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.05)
