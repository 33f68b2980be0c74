"""Line charts as SVG: places of points, missing values, many steps, texts."""

import math
import re
from xml.etree import ElementTree

from agentrl.pages.charts import Chart, line_of


def points(svg: str, css: str) -> list[tuple[float, float]]:
    [line] = [item for item in ElementTree.fromstring(svg).iter("polyline") if item.get("class") == css]
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in (line.get("points") or "").split())]


def labels(svg: str) -> list[str]:
    return [item.text or "" for item in ElementTree.fromstring(svg).iter("text")]


def test_points_lie_between_the_lines_of_their_values():
    svg = Chart(title="t", lines=[line_of("a", [0, 5, 10], [0.0, 0.5, 1.0])]).svg
    (x0, y0), (x1, y1), (x2, y2) = points(svg, "c1")
    assert (x1 - x0, y0 - y1) == (x2 - x1, y1 - y2)
    heights = [float(item.get("y1") or 0) for item in ElementTree.fromstring(svg).iter("line")]
    assert (max(heights), min(heights)) == (y0, y2)
    assert labels(svg) == ["0", "0.25", "0.5", "0.75", "1", "0", "5", "10"]


def test_an_axis_in_per_cent_shows_small_shares():
    assert labels(Chart(title="t", lines=[line_of("a", [1, 2], [0.0, 0.004])], in_percent=True).svg)[:3] == [
        "0%",
        "0.1%",
        "0.2%",
    ]


def test_negative_and_constant_values_have_an_axis():
    assert labels(Chart(title="t", lines=[line_of("a", [1, 2], [-3.0, -1.0])]).svg)[0] == "-3"
    assert labels(Chart(title="t", lines=[line_of("a", [1, 2], [0.0, 0.0])]).svg)[0] == "0"
    assert "nan" not in Chart(title="t", lines=[line_of("a", [7], [2.0])]).svg


def test_missing_and_infinite_values_are_left_out():
    assert line_of("a", [1, 2, 3, 4], [1.0, None, math.nan, math.inf]).steps == [1]


def test_many_steps_are_thinned_out_to_their_means():
    line = line_of("a", range(1, 100_001), [float(step % 2) for step in range(1, 100_001)])
    assert (len(line.steps), line.steps[0], line.steps[-1]) == (150, 1, 100_000)
    assert all(abs(value - 0.5) < 0.01 for value in line.values)


def test_a_smoothed_line_keeps_its_raw_values():
    values = [float(step % 2) for step in range(20)]
    svg = Chart(title="t", lines=[line_of("a", range(20), values, is_smoothed=True)]).svg
    raw, smooth = (points(svg, css) for css in ("c1 raw", "c1"))
    assert len({y for _, y in raw}) == 2
    heights = [max(y for _, y in path) - min(y for _, y in path) for path in (smooth[5:], raw)]
    assert heights[0] < 0.3 * heights[1]


def test_names_are_escaped():
    svg = Chart(title="<b>&", lines=[line_of("<script>", [1], [1.0])]).svg
    assert not re.search("<script>|<b>", svg)
    assert "&lt;script&gt;" in svg
