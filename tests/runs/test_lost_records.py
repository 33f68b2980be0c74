"""A record file that loses its end between two commands, in a real run."""

import json
from pathlib import Path

import pytest

from agentrl.trajectories.store import read_trajectories
from tests.runners.run_process import SMALL, finish_run, metrics

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]


def test_a_run_that_resumes_reports_lost_trajectories_once_and_keeps_that_in_its_result(tmp_path: Path):
    run_dir = tmp_path / "run"
    arguments = [*SMALL, "checkpoint.every_steps=1"]
    finish_run(run_dir, *arguments, "run.num_steps=1", timeout_s=280)
    file = run_dir / "trajectories" / "step_000001.jsonl"
    num_trajectories = len(list(read_trajectories(file)))
    assert num_trajectories == metrics(run_dir)[1]["rollout/trajectories"]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2])[:-40])
    loss = f"trajectories/step_000001.jsonl: its end is lost: {num_trajectories - 3} of {num_trajectories} trajectories"
    for num_steps in (2, 3):
        output = finish_run(run_dir, *arguments, f"run.num_steps={num_steps}", timeout_s=280)
        assert (f"WARNING {loss}" in " ".join(output.split())) == (num_steps == 2), output
        [kept] = json.loads((run_dir / "result.json").read_text())["lost_records"]
        assert kept.startswith(loss)
        assert f"lost: {kept}" in " ".join(output.split())
