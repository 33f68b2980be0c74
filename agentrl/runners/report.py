"""Writes the report of a run as one HTML file; a run writes it itself when it ends.

    python -m agentrl.runners.report RUN_DIR                            RUN_DIR/report.html
    python -m agentrl.runners.report RUN_DIR --config detectors.yaml    with your own detectors
    python -m agentrl.runners.report RUN_DIR --out report.html          of a run on a read-only disk

It reads files only, so the run may go on or have crashed.
"""

import argparse
import sys
from pathlib import Path

from agentrl.pages.run_report import write_run_report
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import run_blocking


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl.runners.report", description="Write the report of a run as one HTML file."
    )
    parser.add_argument("run_dir", type=Path, help="folder of the run")
    parser.add_argument("--config", type=Path, help="your detectors (docs/detectors.md)")
    parser.add_argument("--out", type=Path, help="the file (default: report.html in the folder)")
    arguments = parser.parse_args()

    def command(_stop: StopRequest) -> None:
        print(write_run_report(arguments.run_dir, detectors_config=arguments.config, file=arguments.out))

    return run_blocking(command, when_stopped="nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
