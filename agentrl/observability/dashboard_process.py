"""The dashboard beside a run, as a process of its own: what it reads and draws takes nothing from the run's event loop."""

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.schema.observability import ObservabilitySection

logger = logging.getLogger(__name__)

_PREFIX = "dashboard: "
_STOP_TIMEOUT_S = 5.0


@contextlib.contextmanager
def dashboard_process(run_dir: Path, section: ObservabilitySection) -> Iterator[None]:
    """Serve the dashboard of `run_dir` while the context lasts, and log its address; without `dashboard_port`, do nothing.

    A dashboard that cannot start, or dies, costs a warning.
    """
    if section.dashboard_port is None:
        yield
        return
    place = ("--host", section.dashboard_host, "--port", str(section.dashboard_port))
    command = (sys.executable, "-m", "agentrl.dashboard", str(run_dir), *place)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C of the run ends it when the run has ended
    )
    ending = threading.Event()
    reader = threading.Thread(target=_report, args=(process, ending), daemon=True)
    reader.start()
    try:
        yield
    finally:
        ending.set()
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()


def _report(process: "subprocess.Popen[str]", ending: threading.Event) -> None:
    assert process.stdout is not None, "a pipe"
    last = "no output"
    for line in process.stdout:
        last = line.strip() or last
        if line.startswith(_PREFIX):
            logger.info("%s", last)
    if not ending.is_set():
        logger.warning("dashboard: ended with status %s (%s); the run goes on", process.wait(), last)
