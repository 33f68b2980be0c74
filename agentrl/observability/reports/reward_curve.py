"""The picture of a run: reward, validation accuracy and tool use over its steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.observability.metrics_file import MetricsRow, read_metrics, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SMOOTHING_STEPS = 5


def draw_reward_curve(metrics_path: Path, png_path: Path, *, title: str) -> None:
    """Draw validation accuracy, training reward and tool use over the steps of a run.

    Training metrics are shown raw (faint) and as the mean of the last five steps; validation as points with bars of two
    standard errors if the metrics have them. Missing series are left out.

    Raises:
        ValueError: the metrics hold none of the series.
    """
    # Imported here: it takes a second, which would delay the start of every run.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = read_metrics(metrics_path)
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    quality, tools = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_smoothed(quality, rows, "rollout/reward_mean", label="training reward", color=_ORANGE)
    _draw_validation(quality, rows)
    _draw_smoothed(tools, rows, "rollout/tool_call_share", label="trajectories that call a tool", color=_GREEN)
    _draw_smoothed(tools, rows, "rollout/tool_success_rate", label="tool calls that succeed", color=_PURPLE)
    if not quality.has_data() and not tools.has_data():
        raise ValueError(f"{metrics_path}: nothing to draw, no step has a reward, an accuracy or a tool call")
    quality.set_title(title, loc="left", fontsize=13, fontweight="bold")
    quality.set_ylabel("reward")
    tools.set_ylabel("share")
    tools.set_xlabel("step (actor updates)")
    tools.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (quality, tools):
        _finish(axes)
    figure.savefig(png_path, dpi=150)


def _draw_validation(axes: "Axes", rows: Sequence[MetricsRow]) -> None:
    steps, accuracy = series(rows, "validation/accuracy")
    if not steps:
        return
    stderr_by_step = dict(zip(*series(rows, "validation/accuracy_stderr"), strict=True))
    bars = [2 * stderr_by_step.get(step, 0.0) for step in steps]
    label = "validation accuracy" + (" (± 2 standard errors)" if any(bars) else "")
    axes.errorbar(steps, accuracy, yerr=bars, color=_BLUE, marker="o", capsize=3, linewidth=1.8, label=label)
    for index in {0, len(steps) - 1}:
        axes.annotate(
            f"{accuracy[index]:.2f}",
            (steps[index], accuracy[index] + bars[index]),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color=_BLUE,
            fontweight="bold",
        )


def _draw_smoothed(axes: "Axes", rows: Sequence[MetricsRow], name: str, *, label: str, color: str) -> None:
    steps, values = series(rows, name)
    if not steps:
        return
    if len(steps) <= _SMOOTHING_STEPS:
        axes.plot(steps, values, color=color, marker=".", linewidth=1.8, label=label)
        return
    axes.plot(steps, values, color=color, alpha=0.35, linewidth=1.0)
    axes.plot(
        steps, _trailing_means(values), color=color, linewidth=1.8, label=f"{label} (mean of {_SMOOTHING_STEPS} steps)"
    )


def _trailing_means(values: Sequence[float]) -> list[float]:
    windows = (values[max(0, end - _SMOOTHING_STEPS) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def _finish(axes: "Axes") -> None:
    low, high = axes.dataLim.intervaly
    if axes.has_data() and low >= 0.0 and high <= 1.1:
        axes.set_ylim(-0.03, 1.12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", framealpha=0.9)
