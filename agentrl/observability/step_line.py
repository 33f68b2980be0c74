"""The line of a step in the terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumn:
    """One metric of the line.

    Example: `StepColumn(title="reward", metric="rollout/reward_mean", width=5, decimals=3)` prints `reward 0.512`.
    """

    title: str
    metric: str
    width: int
    decimals: int
    unit: str = ""
    notation: Literal["f", "e"] = "f"
    """`e` for numbers of any size, such as learning rates."""


STEP_COLUMNS = (
    StepColumn(title="accuracy", metric="validation/accuracy", width=5, decimals=3),
    StepColumn(title="reward", metric="rollout/reward_mean", width=5, decimals=3),
    StepColumn(title="tool use", metric="rollout/tool_call_share", width=4, decimals=2),
    StepColumn(title="ok", metric="rollout/tool_success_rate", width=4, decimals=2),
    StepColumn(title="tokens", metric="rollout/response_tokens_mean", width=5, decimals=0),
    StepColumn(title="grad", metric="actor/grad_norm", width=6, decimals=3),
    StepColumn(title="in", metric="time/step_s", width=5, decimals=1, unit=" s"),
)


SFT_COLUMNS = (
    StepColumn(title="loss", metric="sft/loss", width=6, decimals=4),
    StepColumn(title="held-out", metric="validation/loss", width=6, decimals=4),
    StepColumn(title="grad", metric="sft/grad_norm", width=6, decimals=3),
    StepColumn(title="lr", metric="sft/learning_rate", width=7, decimals=1, notation="e"),
    StepColumn(title="tokens/s", metric="sft/tokens_per_s", width=6, decimals=0),
    StepColumn(title="in", metric="time/step_s", width=5, decimals=1, unit=" s"),
)
"""Columns of supervised training."""


def format_step_line(step: int, metrics: Mapping[str, float], columns: Sequence[StepColumn] = STEP_COLUMNS) -> str:
    """Return the metrics of `step` as one line; a missing value is a dash, so that the columns stay aligned."""
    cells = [f"{column.title} {_format_cell(column, metrics)}" for column in columns]
    return "  ".join([f"step {step:>4}", *cells])


def _format_cell(column: StepColumn, metrics: Mapping[str, float]) -> str:
    value = metrics.get(column.metric, math.nan)
    text = f"{value:.{column.decimals}{column.notation}}" if math.isfinite(value) else "-"
    return f"{text:>{column.width}}{column.unit}"
