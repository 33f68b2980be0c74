"""The report of a run: `report.html` in its folder."""

import logging
from dataclasses import dataclass
from pathlib import Path

from agentrl.detectors.curves import Curve
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import count_survived, describe_survived
from agentrl.pages import run_sections as sections
from agentrl.pages.charts import Chart
from agentrl.pages.conversation import Conversation
from agentrl.pages.page import Table, write_page
from agentrl.pages.run_record import RunRecord, read_run

logger = logging.getLogger(__name__)

REPORT = "report.html"
"""File in the folder of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """All that the report of a run shows."""

    title: str
    status: str
    notes: list[str]
    facts: list[tuple[str, str]]
    charts: list[Chart]
    changes: Table
    advice: str
    """Conclusion of the run on its time; empty while it goes on."""
    step_parts: Table
    trajectory_parts: Table
    failures: Table
    endings: Table
    tools: Table
    """Tools of the file of the examples."""
    survived: str
    """Deaths that the run survived; empty without any."""
    fates: Table
    fate_chart: Chart | None
    detectors: list[tuple[Curve, list[Chart]]]
    """Detectors with a hit."""
    silent: list[str]
    """Names of the other detectors."""
    given_up: list[str]
    examples: list[Conversation]
    latest: str
    """Name of the file of the examples, such as `validation_000060`."""


def write_run_report(
    run_dir: Path, *, detectors_config: Path | None = None, file: Path | None = None, advice: str = ""
) -> Path:
    """Write the report of a run that is finished, goes on or has crashed, and return its file.

    `advice` is the run's conclusion on its time.

    Raises:
        ConfigError: the folder holds no run, or a detector is wrong.
        ValueError: a file of the run is damaged.
    """
    if (run_dir / "report.md").exists():
        raise ConfigError(f"{run_dir}: an evaluation, which has its own report. `agentrl.runners.evaluate` writes it.")
    report = report_of(read_run(run_dir, detectors_config), advice=advice)
    file = file or run_dir / REPORT
    write_page(file, "run.html", title=report.title, report=report)
    return file


def try_to_write_run_report(run_dir: Path, *, advice: str) -> None:
    """Write the report at the end of a run, which must not fail by it."""
    try:
        logger.info("report: %s", write_run_report(run_dir, advice=advice))
    except Exception:
        logger.warning(
            "report: not written; `python -m agentrl.runners.report %s` tries it once more", run_dir, exc_info=True
        )


def report_of(record: RunRecord, *, advice: str = "") -> RunReport:
    """Return the report of a run."""
    rows, curves = record.rows, record.curves
    wanted = record.config.run.num_steps
    is_finished = record.num_steps >= wanted
    return RunReport(
        title=f"Run {record.path.resolve().name}",
        status=f"{'finished after' if is_finished else 'not finished:'} {record.num_steps} of {wanted} steps",
        notes=sections.notes(record),
        facts=sections.facts(record.config),
        charts=sections.charts(rows),
        changes=sections.changes(rows),
        advice=advice,
        step_parts=sections.step_parts(rows),
        trajectory_parts=sections.trajectory_parts(rows),
        failures=sections.failures(record.failed_tries),
        endings=sections.endings(record.endings),
        tools=sections.tools(record),
        survived=describe_survived(count_survived(record.path / "metrics.jsonl")) if rows else "",
        fates=sections.fates(record.fates.values()),
        fate_chart=sections.fate_chart(record),
        detectors=[(curve, sections.curve_charts(curve)) for curve in curves if curve.num_hit],
        silent=[curve.name for curve in curves if not curve.num_hit and not curve.problem],
        given_up=[f"{curve.name}: given up at {curve.problem}" for curve in curves if curve.problem],
        examples=sections.examples(record),
        latest=record.last_file.stem if record.last_file else "",
    )
