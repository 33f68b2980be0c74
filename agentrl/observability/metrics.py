"""Where the numbers of a step go: the log line, `metrics.jsonl` and TensorBoard."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.observability.metrics_file import MetricsFile
from agentrl.observability.step_line import STEP_COLUMNS, StepColumn, format_step_line
from agentrl.observability.tensorboard_events import TensorBoardEvents

logger = logging.getLogger(__name__)


class MetricsLogger:
    """The metrics of one run, in its directory; a context manager.

    Call `log` once per step, before the checkpoint of that step is written: then no step that a checkpoint follows lacks
    its numbers.
    """

    def __init__(self, run_dir: Path, columns: Sequence[StepColumn] = STEP_COLUMNS) -> None:
        """Open the files in `run_dir`; `columns` are the numbers of the log line."""
        self._columns = columns
        self._file = MetricsFile(run_dir / "metrics.jsonl")
        self._events = TensorBoardEvents(run_dir / "tensorboard")

    def log(self, step: int, metrics: Mapping[str, float], *, with_line: bool = True) -> None:
        """Record the numbers of `step` (actor updates done); NaN says that a number does not exist.

        Args:
            step: the last update.
            metrics: `stage/name_unit` and its number.
            with_line: whether the step has a line in the log.

        Raises:
            ValueError: `step` is not after the last one, or a name is not `stage/name_unit`.
        """
        self._file.append(step, metrics)
        self._events.append(step, metrics)
        if with_line:
            logger.info("%s", format_step_line(step, metrics, self._columns))

    def take_back(self, *, after_step: int) -> None:
        """Forget what a killed run logged after its last checkpoint, that of step `after_step`; -1 forgets everything."""
        self._file.take_back(after_step=after_step)
        self._events.take_back(after_step=after_step)

    @property
    def last_step(self) -> int:
        """The last step that is recorded; -1 before the first."""
        return self._file.last_step

    def close(self) -> None:
        """Flush and close."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
