"""A process that holds a model and an engine is killed in the middle of a run, which goes on from its checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.rollout.accounting import faults_of_run
from tests.runners.run_process import SMALL, metrics, running, steps

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1500)]

TOGETHER = ["cluster.pools.policy.num_processes=2", "cluster.roles.actor_rollout=policy"]


def ranks_of(processes: Sequence[psutil.Process], kind: str) -> list[psutil.Process]:
    ranks = []
    for process in processes:
        try:
            if " ".join(process.cmdline()).startswith(kind):
                ranks.append(process)
        except psutil.NoSuchProcess:
            continue
    return ranks


def test_a_run_whose_rank_is_killed_restarts_its_models_and_reaches_its_end(tmp_path: Path):
    overrides = [*SMALL, "checkpoint.every_steps=1", "checkpoint.keep_last=9", "run.num_steps=3", *TOGETHER]
    with running(tmp_path / "run", *overrides) as run:
        run.wait_for_step(1, timeout_s=600)
        ranks = ranks_of(run.family(), "ray::ModelEngineWorker")
        assert len(ranks) == 2
        ranks[0].kill()
        output, _ = run.process.communicate(timeout=1200)
        assert run.process.returncode == 0, output
        assert "survived:       1 restart of the models" in output
    assert steps(tmp_path / "run") == [0, 1, 2, 3], "each step once, those after the checkpoint made again"
    assert [row.get("actor/restarts") for row in metrics(tmp_path / "run")][-1] == 1
    assert "its process died; restarting the models" in (tmp_path / "run" / "run.log").read_text()
    # Engines that had not been given the checkpoint's weights would have sampled with others than the actor.
    assert faults_of_run(tmp_path / "run", config="configs/demo.yaml", overrides=overrides) == []
