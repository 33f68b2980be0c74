"""Outputs of a step's metrics: the log line, `metrics.jsonl` and TensorBoard."""

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

    Call `log` once per step, before its checkpoint is written, so that no step before a checkpoint lacks its metrics.
    """

    def __init__(self, run_dir: Path, columns: Sequence[StepColumn] = STEP_COLUMNS) -> None:
        """Open the files in `run_dir`; `columns` are those of the log line."""
        self._columns = columns
        self._file = MetricsFile(run_dir / "metrics.jsonl")
        self._events = TensorBoardEvents(run_dir / "tensorboard")

    def log(self, step: int, metrics: Mapping[str, float], *, with_line: bool = True) -> None:
        """Record the metrics of `step`; NaN means that a value does not exist.

        Args:
            step: number of actor updates so far.
            metrics: values keyed by `stage/name_unit`.
            with_line: log a line for the step.

        Raises:
            ValueError: `step` is not after the last one, or a name is not `stage/name_unit`.
        """
        self._file.append(step, metrics)
        self._events.append(step, metrics)
        if with_line:
            logger.info("%s", format_step_line(step, metrics, self._columns))

    def take_back(self, *, after_step: int) -> None:
        """Remove the steps after `after_step`, the last checkpoint of a killed run; -1 removes all."""
        self._file.take_back(after_step=after_step)
        self._events.take_back(after_step=after_step)

    @property
    def last_step(self) -> int:
        """The last recorded step; -1 before the first."""
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
