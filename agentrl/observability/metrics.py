"""Outputs of a step's metrics: the log line, `metrics.jsonl` and the sinks."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.observability.logs import aligned
from agentrl.observability.metrics_file import MetricsFile
from agentrl.observability.sinks.opening import Sinks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumn:
    """One metric of the line.

    Example: `StepColumn(title="reward", metric="rollout/reward_mean", form="5.3f")` prints `reward 0.512`.
    """

    title: str
    metric: str
    form: str
    """Format of the number, with its width."""
    unit: str = ""


STEP_COLUMNS = (
    StepColumn(title="accuracy", metric="validation/accuracy", form="5.3f"),
    StepColumn(title="reward", metric="rollout/reward_mean", form="5.3f"),
    StepColumn(title="tool use", metric="rollout/tool_call_share", form="4.2f"),
    StepColumn(title="ok", metric="rollout/tool_success_rate", form="4.2f"),
    StepColumn(title="tokens", metric="rollout/response_tokens_mean", form="5.0f"),
    StepColumn(title="grad", metric="actor/grad_norm", form="6.3f"),
    StepColumn(title="in", metric="time/step_s", form="5.1f", unit=" s"),
)

SFT_COLUMNS = (
    StepColumn(title="loss", metric="sft/loss", form="6.4f"),
    StepColumn(title="held-out", metric="validation/loss", form="6.4f"),
    StepColumn(title="grad", metric="sft/grad_norm", form="6.3f"),
    StepColumn(title="lr", metric="sft/learning_rate", form="7.1e"),
    StepColumn(title="tokens/s", metric="sft/tokens_per_s", form="6.0f"),
    StepColumn(title="in", metric="time/step_s", form="5.1f", unit=" s"),
)
"""Columns of supervised training."""


def step_cells(step: int, metrics: Mapping[str, float], columns: Sequence[StepColumn] = STEP_COLUMNS) -> list[str]:
    """Return the metrics of `step` in columns; a missing value is a dash, so that they stay aligned."""
    return [f"step {step:>4}", *(f"{column.title} {_format_cell(column, metrics)}" for column in columns)]


def _format_cell(column: StepColumn, metrics: Mapping[str, float]) -> str:
    value = metrics.get(column.metric, math.nan)
    text = format(value, column.form) if math.isfinite(value) else "-".rjust(int(column.form.partition(".")[0]))
    return f"{text}{column.unit}"


class MetricsLogger:
    """The metrics of one run, in its directory; a context manager.

    Call `log` once per step, before its checkpoint is written, so that no step before a checkpoint lacks its metrics.
    """

    def __init__(
        self,
        run_dir: Path,
        section: ObservabilitySection,
        *,
        columns: Sequence[StepColumn] = STEP_COLUMNS,
        config: Mapping[str, Any],
    ) -> None:
        """Open the file in `run_dir`, and the sinks.

        Args:
            run_dir: the run's folder.
            section: the sinks, and the run's place in them.
            columns: those of the log line.
            config: the run's whole config, which trackers show.
        """
        self._columns = columns
        self._file = MetricsFile(run_dir / "metrics.jsonl")
        self._sinks = Sinks(run_dir, section, config)

    def log(self, step: int, metrics: Mapping[str, float], *, with_line: bool = True) -> None:
        """Record the metrics after `step` actor updates, keyed by `stage/name_unit`; NaN means that a value does not exist."""
        metrics = {**metrics, **self._sinks.metrics()}
        self._file.append(step, metrics)
        self._sinks.log(step, metrics)
        if with_line:
            cells = step_cells(step, metrics, self._columns)
            logger.info("%s", "  ".join(cells), extra=aligned(cells))

    def take_back(self, *, after_step: int) -> None:
        """Remove the steps after `after_step`, the last checkpoint of a killed run; -1 removes all.

        Sinks see them a second time.
        """
        self._file.take_back(after_step=after_step)

    def close(self) -> None:
        """Flush and close; sinks get `agentrl.observability.sinks.opening.CLOSE_S` for that."""
        self._sinks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
