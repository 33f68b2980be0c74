"""Line charts as inline SVG; colours are those of the page's theme."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from markupsafe import Markup

_WIDTH, _HEIGHT = 440, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 22
_MAX_POINTS = 150
"""Points of a line; more steps are drawn as means of neighbours."""
_MAX_DOTS = 40
_SMOOTHING_STEPS = 5
_NUM_TICKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a chart."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]
    is_smoothed: bool = False
    """True: the values are drawn faintly, and their mean over five steps boldly."""
    has_dots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of one or more lines over the steps of a run."""

    title: str
    lines: list[Line]
    in_percent: bool = False
    """True: the axis shows shares in per cent."""

    @property
    def legend(self) -> list[str]:
        """Names of the lines, in the order of their colours."""
        return [line.name for line in self.lines]

    @property
    def svg(self) -> Markup:
        """The picture, safe to be put into a page."""
        return Markup("").join(_drawn(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Ranges of a chart; `x` and `y` are its coordinates."""

    first: int
    last: int
    low: float
    high: float
    tick: float
    """Distance of the horizontal lines."""

    def x(self, step: float) -> float:
        """Return the horizontal place of a step."""
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        return _TOP + (self.high - value) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)


def line_of(name: str, steps: Sequence[int], values: Sequence[float | None], *, is_smoothed: bool = False) -> Line:
    """Return a line through the finite values, thinned out to what a chart can show."""
    points = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    count = min(len(points), _MAX_POINTS)
    ends = [index * len(points) // count for index in range(count + 1)] if count else [0]
    cells = [points[start:end] for start, end in pairwise(ends)]
    return Line(
        name=name,
        steps=[cell[-1 if index else 0][0] for index, cell in enumerate(cells)],
        values=[fmean(value for _, value in cell) for cell in cells],
        is_smoothed=is_smoothed and len(cells) > 2 * _SMOOTHING_STEPS,
    )


def _drawn(chart: Chart) -> Iterator[Markup]:
    axes = _axes_of(chart)
    yield Markup('<svg class="chart" viewBox="0 0 {} {}" role="img"><title>{}</title>').format(
        _WIDTH, _HEIGHT, chart.title
    )
    for index in range(round((axes.high - axes.low) / axes.tick) + 1):
        value = axes.low + index * axes.tick
        y = f"{axes.y(value):.1f}"
        label = f"{100 * value:.3g}%" if chart.in_percent else f"{value:.3g}"
        yield Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, _WIDTH - _RIGHT, y, y)
        yield Markup('<text class="end" x="{}" y="{}" dy=".32em">{}</text>').format(_LEFT - 6, y, label)
    for step, anchor in {axes.first: "", (axes.first + axes.last) // 2: "middle", axes.last: "end"}.items():
        yield Markup('<text class="{}" x="{:.1f}" y="{}">{}</text>').format(anchor, axes.x(step), _HEIGHT - 5, step)
    for number, line in enumerate(chart.lines, start=1):
        yield from _drawn_line(line, axes, number)
    yield Markup("</svg>")


def _drawn_line(line: Line, axes: _Axes, number: int) -> Iterator[Markup]:
    values = line.values
    if line.is_smoothed:
        yield _path(line.steps, values, axes, f"c{number} raw")
        values = [fmean(values[max(0, end - _SMOOTHING_STEPS) : end]) for end in range(1, len(values) + 1)]
    yield _path(line.steps, values, axes, f"c{number}")
    for step, value in zip(line.steps, line.values, strict=True):
        radius = 3.5 if (line.has_dots and len(line.steps) <= _MAX_DOTS) or len(line.steps) == 1 else 0
        yield (
            Markup(
                '<circle class="c{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}, step {}: {:.4g}</title></circle>'
            ).format(number, axes.x(step), axes.y(value), radius, line.name, step, value)
            if radius
            else Markup("")
        )


def _path(steps: Sequence[int], values: Sequence[float], axes: _Axes, css: str) -> Markup:
    points = " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in zip(steps, values, strict=True))
    return Markup('<polyline class="{}" points="{}"/>').format(css, points)


def _axes_of(chart: Chart) -> _Axes:
    """Return axes from 0, or less, to a round number above all values."""
    steps = [step for line in chart.lines for step in line.steps]
    values = [value for line in chart.lines for value in line.values]
    low, high = min([0.0, *values]), max([0.0, *values])
    rough = (high - low) / _NUM_TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    tick = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * 0.999)
    low, high = math.floor(low / tick + 1e-9) * tick, math.ceil(high / tick - 1e-9) * tick
    return _Axes(first=min(steps), last=max(steps), low=low, high=high if high > low else low + tick, tick=tick)
