"""TensorBoard event files in the run's folder, written without torch or TensorFlow."""

import time
from collections.abc import Mapping

# protobuf makes these classes at import time, where a type checker cannot see them
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from agentrl.observability.sinks.base import TrackedRun


class TensorBoardSink:
    """Writes one event per step into `tensorboard/`, in a new file per process."""

    def __init__(self, run: TrackedRun) -> None:
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))
        self._last_step: int | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of `step`, in the place of those that were written for it or for later steps."""
        if self._last_step is None or step <= self._last_step:
            self._purge_from(step)
        self._last_step = step
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Flush, and end the writer's thread."""
        self._writer.close()

    def _purge_from(self, step: int) -> None:
        """Make TensorBoard drop `step` and those after it.

        Event files are never rewritten: a session that starts at a step tells TensorBoard to purge from that step on.
        """
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step, file_version="brain.Event:2"))
        self._writer.add_event(Event(wall_time=time.time(), step=step, session_log=start))
