"""The reward curve as text, for the end of a run in a terminal."""

import math
from collections.abc import Sequence
from pathlib import Path

from agentrl.observability.metrics_file import MetricsRow, read_metrics, series

_WIDTH = 60
_HEIGHT = 11
_LABEL_WIDTH = 6
_ACCURACY_MARK, _REWARD_MARK = "●", "·"
_FIRST_AND_LAST = (
    ("validation accuracy", "validation/accuracy"),
    ("training reward", "rollout/reward_mean"),
    ("trajectories that call a tool", "rollout/tool_call_share"),
    ("tool calls that succeed", "rollout/tool_success_rate"),
)

_LOSSES = (("held-out loss", "validation/loss"), ("training loss", "sft/loss"))


def text_curve(metrics_path: Path) -> str:
    """Return a plot of validation accuracy and training reward, and the first and last value of each metric.

    Raises:
        ValueError: the metrics hold neither.
    """
    rows = read_metrics(metrics_path)
    reward, accuracy = series(rows, "rollout/reward_mean"), series(rows, "validation/accuracy")
    if not reward[0] and not accuracy[0]:
        raise ValueError(f"{metrics_path}: nothing to draw, no step has a reward or an accuracy")
    # Accuracy comes last, so that it wins if both fall on one character.
    plot = _plot([(_REWARD_MARK, *reward), (_ACCURACY_MARK, *accuracy)])
    return "\n".join(
        [
            f"{_ACCURACY_MARK} validation accuracy   {_REWARD_MARK} training reward",
            *plot,
            "",
            *_changes(rows, _FIRST_AND_LAST),
        ]
    )


def loss_curve(metrics_path: Path) -> str:
    """Return the same for the training loss and the held-out loss; either may be missing."""
    rows = read_metrics(metrics_path)
    curves = [(_REWARD_MARK, *series(rows, "sft/loss")), (_ACCURACY_MARK, *series(rows, "validation/loss"))]
    legend = f"{_ACCURACY_MARK} held-out loss   {_REWARD_MARK} training loss"
    return "\n".join([legend, *_plot(curves), "", *_changes(rows, _LOSSES)])


def _plot(curves: Sequence[tuple[str, Sequence[int], Sequence[float]]]) -> list[str]:
    all_steps = [step for _, steps, _ in curves for step in steps]
    all_values = [value for _, _, values in curves for value in values]
    first, last = min(all_steps), max(all_steps)
    low, high = min(0.0, *all_values), max(1.0, *all_values)
    canvas = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for mark, steps, values in curves:
        for step, value in zip(steps, values, strict=True):
            column = _scale(step, first, last, _WIDTH)
            canvas[_HEIGHT - 1 - _scale(value, low, high, _HEIGHT)][column] = mark
    labels = [f"{high - (high - low) * row / (_HEIGHT - 1):{_LABEL_WIDTH}.2f}" for row in range(_HEIGHT)]
    margin = " " * _LABEL_WIDTH
    axis = f"{first}{str(last).rjust(_WIDTH - len(str(first)))}"
    return [
        *(f"{label} ┤{''.join(row).rstrip()}" for label, row in zip(labels, canvas, strict=True)),
        f"{margin} └{'─' * _WIDTH}",
        f"{margin}  {axis}  step",
    ]


def _scale(value: float, low: float, high: float, cells: int) -> int:
    """Return the cell, out of `cells`, into which `value` between `low` and `high` falls."""
    return 0 if high == low else math.floor((value - low) / (high - low) * (cells - 1) + 0.5)


def _changes(rows: Sequence[MetricsRow], numbers: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for title, name in numbers:
        steps, values = series(rows, name)
        if steps:
            lines.append(f"{title:<30} {values[0]:.3f} (step {steps[0]}) -> {values[-1]:.3f} (step {steps[-1]})")
    return lines
