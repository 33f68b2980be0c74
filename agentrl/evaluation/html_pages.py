"""The pages of an evaluation and of a comparison."""

from pathlib import Path

from agentrl.evaluation.comparison import (
    COMPARISON_METHOD,
    Comparison,
    conversations_of,
    describe_test,
    result_rows,
)
from agentrl.evaluation.figures import interval, number
from agentrl.evaluation.report import METHOD, Report
from agentrl.pages.page import Table, write_page

_FORMATS = {"number": number, "interval": interval}
_NUM_PAIRS = 8
"""Prompts with conversations on the page of a comparison."""


def write_report_page(file: Path, report: Report) -> None:
    """Write an evaluation's report."""
    means = [value.mean for _, value in report.figures[0].rows()]
    is_share = not any(mean < 0 or mean > 1 for mean in means)  # NaN, of too few samples, is no reason against it
    write_page(file, "report.html", title=report.title, report=report, is_share=is_share, method=METHOD, **_FORMATS)


def write_comparison_page(file: Path, comparison: Comparison) -> None:
    """Write the comparison of two evaluations, with conversations of the prompts that differ most."""
    first, second = comparison.sides
    pairs = conversations_of(comparison, num_prompts=_NUM_PAIRS)
    write_page(
        file,
        "comparison.html",
        title=f"{second.folder.name} compared with {first.folder.name}",
        comparison=comparison,
        verdict=describe_test(comparison),
        method=COMPARISON_METHOD,
        result=Table(columns=("mean outcome", "value", "95 % interval"), rows=result_rows(comparison)),
        sides=[(letter, f"{side.folder} ({side.model})") for letter, side in zip("AB", comparison.sides, strict=True)],
        changes=Table(columns=("key", "A", "B"), rows=[*comparison.changes], num_texts=2),
        pairs=[*zip(comparison.prompts, pairs, strict=False)],
        **_FORMATS,
    )
