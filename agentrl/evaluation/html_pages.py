"""Self-contained HTML pages: no script, no request, every text escaped."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from agentrl.checkpoints.store import write_whole
from agentrl.evaluation.figures import interval, number
from agentrl.evaluation.report import METHOD, Report


def write_report_page(file: Path, report: Report) -> None:
    """Write an evaluation's report."""
    is_share = all(0 <= value.mean <= 1 for figures in report.figures for _, value in figures.rows())
    _write_page(file, "report.html", title=report.title, report=report, is_share=is_share, method=METHOD)


def _write_page(file: Path, template: str, **content: Any) -> None:
    pages = Environment(
        loader=PackageLoader("agentrl.evaluation", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"number": number, "interval": interval, "percent": _percent}
    text = pages.get_template(template).render(**content)
    # A policy can write half a surrogate pair, which has no UTF-8 form.
    write_whole(file, text.encode(errors="replace"))


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
