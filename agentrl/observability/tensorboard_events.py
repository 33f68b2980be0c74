"""TensorBoard event files, written without torch or TensorFlow."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

# protobuf makes these classes at import time, where a type checker cannot see them
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoardEvents:
    """Writes one event per step into `folder`, in a new file per process."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of `step`, except non-finite ones, which TensorBoard cannot draw."""
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if math.isfinite(value)
        ]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def take_back(self, *, after_step: int) -> None:
        """Make TensorBoard drop the steps after `after_step` of earlier files.

        Event files are never rewritten: a session that starts at a step tells TensorBoard to purge from that step on.
        """
        first_purged = after_step + 1
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first_purged, file_version="brain.Event:2"))
        self._writer.add_event(Event(wall_time=time.time(), step=first_purged, session_log=start))
        self._writer.flush()

    def close(self) -> None:
        """Flush, and end the writer's thread."""
        self._writer.close()
