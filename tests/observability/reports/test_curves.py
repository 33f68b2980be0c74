from pathlib import Path

import numpy
import pytest
from matplotlib.image import imread

from agentrl.observability.metrics_file import MetricsFile
from agentrl.observability.reports.reward_curve import draw_reward_curve
from agentrl.observability.reports.text_curve import text_curve


def learning_run(folder: Path, num_steps: int) -> Path:
    path = folder / "metrics.jsonl"
    file = MetricsFile(path)
    for step in range(num_steps + 1):
        share = step / num_steps
        metrics = {} if step else {"validation/accuracy": 0.25, "validation/accuracy_stderr": 0.02}
        if step:
            metrics |= {"rollout/reward_mean": share, "rollout/tool_call_share": share}
        if step == num_steps:
            metrics["validation/accuracy"] = 1.0
        file.append(step, metrics)
    return path


@pytest.mark.parametrize("num_steps", [2, 30])
def test_the_picture_is_readable_at_800_pixels_and_not_empty(tmp_path: Path, num_steps: int) -> None:
    png = tmp_path / "reward_curve.png"
    draw_reward_curve(learning_run(tmp_path, num_steps), png, title="demo")
    pixels = imread(png)
    height, width, _ = pixels.shape
    assert (width, height) == (1200, 960)
    for color in ((0, 114, 178), (230, 159, 0), (0, 158, 115)):  # accuracy, reward, tool calls
        assert (numpy.abs(pixels[..., :3] * 255 - color) < 2).all(axis=-1).sum() > 50, color


def test_a_run_without_any_series_cannot_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append(1, {"actor/loss": 0.5})
    with pytest.raises(ValueError, match=r"metrics\.jsonl: nothing to draw"):
        draw_reward_curve(path, tmp_path / "curve.png", title="demo")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: nothing to draw"):
        text_curve(path)


def test_the_text_curve_rises_with_the_reward_and_says_where_each_number_went(tmp_path: Path) -> None:
    lines = text_curve(learning_run(tmp_path, 10)).splitlines()
    rows = [line.partition("┤")[2] for line in lines if "┤" in line]
    assert len(rows) == 11
    for tenth in range(1, 10):
        assert rows[10 - tenth].rstrip().endswith("·"), tenth
        assert rows[10 - tenth].rindex("·") == int(tenth / 10 * 59 + 0.5)
    assert rows[0] == " " * 59 + "●"
    assert rows[7].startswith("●"), "accuracy 0.25 at step 0 is drawn at 0.3"
    assert "validation accuracy            0.250 (step 0) -> 1.000 (step 10)" in lines
    assert "trajectories that call a tool  0.100 (step 1) -> 1.000 (step 10)" in lines
    assert not any("tool calls that succeed" in line for line in lines)


def test_the_text_curve_stretches_to_rewards_outside_zero_and_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.append(1, {"rollout/reward_mean": -1.0})
    file.append(2, {"rollout/reward_mean": 3.0})
    lines = text_curve(path).splitlines()
    assert lines[1].startswith("  3.00 ┤")
    assert lines[11].startswith(" -1.00 ┤·")


def test_one_single_step_can_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append(0, {"validation/accuracy": 0.5})
    assert "●" in text_curve(path)
    draw_reward_curve(path, tmp_path / "curve.png", title="demo")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
