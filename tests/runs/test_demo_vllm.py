"""The demo on vLLM: the real command, judge, Ray, vLLM, actor and policy, for two steps."""

from pathlib import Path

import pytest

from agentrl.trajectories.store import read_trajectories
from tests.runners.run_process import SMALL, finish_run, metrics

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]


def test_the_demo_trains_on_vllm(tmp_path: Path):
    run_dir = tmp_path / "small"
    finish_run(run_dir, *SMALL, "run.num_steps=2", config="configs/demo_vllm.yaml")
    rows = metrics(run_dir)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for step, row in enumerate(rows[1:], start=1):
        difference = row["actor/rollout_logprob_diff_mean"]
        assert difference is not None
        assert difference < 1e-4
        trajectories = list(read_trajectories(run_dir / "trajectories" / f"step_{step:06d}.atr"))
        assert {version for t in trajectories for _, version in t.version_spans} == {step - 1}
