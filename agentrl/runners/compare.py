"""Compares two evaluations prompt by prompt: `python -m agentrl.runners.compare RUN_DIR_A RUN_DIR_B [--html FILE]`.

records on disk -> prompts paired -> difference, interval, test. Nothing is started; the evaluations may be of any models.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.errors import ConfigError
from agentrl.evaluation.comparison import Comparison, compare, describe_test, read_side, result_rows
from agentrl.evaluation.html_pages import write_comparison_page
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import run_blocking

_NUM_SHOWN = 5
"""Prompts with the largest differences that are printed."""
_MAX_VALUE = 60
"""Largest number of characters of a config value, or of a prompt."""


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the result for a person."""
    for letter, side in zip("AB", comparison.sides, strict=True):
        console.print(f"{letter}: {side.folder} ({side.model})", markup=False, soft_wrap=True)
    for warning in comparison.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    for name, before, now in comparison.changes:
        console.print(f"{name}: {_short(before)} -> {_short(now)}", markup=False, soft_wrap=True)
    table = Table("mean outcome", "value", "95 % interval")
    for row in result_rows(comparison):
        table.add_row(*row)
    console.print(table)
    console.print(describe_test(comparison), markup=False, soft_wrap=True)
    table = Table("largest differences", "A", "B", "prompt")
    for prompt in comparison.prompts[:_NUM_SHOWN]:
        if prompt.difference != 0:
            text = _short(str(prompt.prompt.messages[-1].get("content", "")))
            cells = (prompt.prompt.prompt_id, f"{prompt.first:.3f}", f"{prompt.second:.3f}", text)
            table.add_row(*map(escape, cells))
    if table.row_count:
        console.print(table)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl.runners.compare", description="Compare two evaluations prompt by prompt."
    )
    parser.add_argument("first", metavar="RUN_DIR_A", type=Path, help="`run.dir` of an evaluation, the baseline")
    parser.add_argument("second", metavar="RUN_DIR_B", type=Path, help="`run.dir` of the other")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with conversations, too")
    arguments = parser.parse_args()

    def command(stop: StopRequest) -> None:
        if arguments.html and not arguments.html.parent.is_dir():
            raise ConfigError(f"--html: there is no folder {arguments.html.parent}; create it, or name another file")
        comparison = compare(read_side(arguments.first), read_side(arguments.second))
        print_comparison(comparison, Console())
        if arguments.html:
            write_comparison_page(arguments.html, comparison)
            print(f"page: {arguments.html}")

    return run_blocking(command, when_stopped="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
