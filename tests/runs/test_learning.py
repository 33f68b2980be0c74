"""The demo learns, and it is the learning that does it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runners.run_process import finish_run, metrics

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]

START = Path("examples/arithmetic/policy")


def series(run_dir: Path, key: str) -> list[float]:
    return [value for row in metrics(run_dir) if (value := row.get(key)) is not None]


def check_learning(run_dir: Path, *, num_steps: int, least_accuracy: float) -> None:
    finish_run(run_dir, f"run.num_steps={num_steps}", timeout_s=1100)
    accuracy = series(run_dir, "validation/accuracy")
    assert accuracy[0] <= 0.5
    assert accuracy[-1] >= least_accuracy
    for key in ("validation/tool_call_share", "validation/tool_success_rate"):
        values = series(run_dir, key)
        assert values[-1] > values[0] + 0.05, key


def test_the_demo_learns_to_use_its_tool(tmp_path: Path):
    """From 0.40 to 0.62 in 10 updates, with a standard error of 0.03."""
    check_learning(tmp_path / "run", num_steps=10, least_accuracy=0.53)


@pytest.mark.soak
def test_the_whole_demo_learns_to_call_without_errors(tmp_path: Path):
    check_learning(tmp_path / "run", num_steps=60, least_accuracy=0.9)
    errors = series(tmp_path / "run", "rollout/tool_error_share_in_positives")
    assert sum(errors[-10:]) < sum(errors[:10])


@pytest.mark.soak
def test_with_a_learning_rate_of_zero_the_curve_stays_flat(tmp_path: Path):
    """The same data, selection and seeds for 10 updates, in which the demo has gone from 0.40 to 0.62."""
    run_dir = tmp_path / "run"
    finish_run(run_dir, "actor.learning_rate=0", "run.num_steps=10", timeout_s=600)
    first, last = series(run_dir, "validation/accuracy")[:: len(series(run_dir, "validation/accuracy")) - 1]
    stderr = series(run_dir, "validation/accuracy_stderr")[0]
    assert abs(last - first) < 3 * 2**0.5 * stderr
    before, after = load_file(START / "model.safetensors"), load_file(run_dir / "policy" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
