"""A process of the models is killed in the middle of a run, which goes on from its checkpoint."""

from pathlib import Path

import psutil
import pytest
from run_process import SMALL, metrics, running, steps

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def is_model(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith("ray::ModelWorker")
    except psutil.NoSuchProcess:
        return False


def test_a_run_whose_rank_is_killed_starts_its_models_again_and_reaches_its_end(tmp_path: Path):
    overrides = [*SMALL, "checkpoint.every_steps=1", "run.num_steps=3", "actor.num_workers=2"]
    with running(tmp_path / "run", *overrides) as run:
        run.wait_for_step(1, timeout_s=600)
        ranks = [process for process in run.family() if is_model(process)]
        assert len(ranks) == 2
        ranks[0].kill()
        output, _ = run.process.communicate(timeout=800)
        assert run.process.returncode == 0, output
    assert steps(tmp_path / "run") == [0, 1, 2, 3], "each step once, those after the checkpoint made again"
    assert [row.get("actor/restarts") for row in metrics(tmp_path / "run")][-1] == 1
    assert "its process died; starting the models again" in (tmp_path / "run" / "run.log").read_text()
