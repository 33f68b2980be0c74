"""Output of every benchmark: the machine, readable tables, and the same as JSON."""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    return parser


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> Row:
    """Return the facts that figures depend on: cores, kernel, interpreter and present load."""
    return {
        "cores": num_cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def print_machine() -> None:
    """Print one line about the machine."""
    facts = machine()
    print(
        f"{facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}, "
        f"load {' '.join(map(str, facts['load']))} before the start"
    )


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows with the same columns; text left-aligned, numbers right-aligned."""
    columns = list(rows[0])
    cells = [[_shown(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [not isinstance(rows[0][column], str) for column in columns]
    print(f"\n{title}")
    for line in [columns, *cells]:
        shown = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  " + "  ".join(shown).rstrip(), flush=True)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def percentiles(values: Sequence[float], *, scale: float = 1.0) -> Row:
    """Return the 50th, 95th and 99th percentile and the maximum of values, each times `scale`."""
    ordered = sorted(values)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else ordered * 99
    return {"p50": cuts[49] * scale, "p95": cuts[94] * scale, "p99": cuts[98] * scale, "max": ordered[-1] * scale}


def write_json(path: Path | None, figures: Row) -> None:
    """Write figures and the machine, if a file is named."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")
        print(f"\nfigures written to {path}")
