"""Ends as a command does whose tracker hangs, and whose tracker's library waits for it at the exit of the process."""

import atexit
import threading
from collections.abc import Mapping

from agentrl.observability.sinks.sink_thread import SinkThread
from agentrl.runners.command_line import exit_process


class HangingSink:
    """Waits forever, and in the exit handler too."""

    def __init__(self) -> None:
        atexit.register(threading.Event().wait)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hang."""
        has_begun.set()
        threading.Event().wait()

    def close(self) -> None:
        """Do nothing."""


has_begun = threading.Event()
thread = SinkThread("hanging", HangingSink)
thread.put(1, {})
has_begun.wait()
thread.end()
thread.join(0.1)
print(f"lost {thread.num_lost}", flush=True)
exit_process(3)
