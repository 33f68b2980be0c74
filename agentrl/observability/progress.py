"""The progress bar of a run: all steps, and the phase of the current one.

    run            ━━━━━━━━━━━━━━╺━━━━━━━━━━━  12/40 steps                           0:00:42 eta 0:01:38
    step 13 rollout ━━━━━━━━━━━━━━━━━╺━━━━━━━  64/96 trajectories · 1,234 tokens/s   0:00:02 eta 0:00:01

Without a terminal there is no bar, but a line for a long rollout after 10 s, and then once a minute:

    step 13 rollout: 64/96 trajectories, 1,234 tokens/s
"""

import logging
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

_FIRST_LINE_AFTER_S = 10.0
_LINE_EVERY_S = 60.0
_WIDE = 100
"""Width from which a terminal has room for the elapsed time."""


class RunProgress:
    """A context manager around the steps of a run; log records written to the same console appear above the bar.

    Example:
        with RunProgress(console, num_steps=40) as progress:
        progress.resume(num_steps_done=12)
            progress.start_rollout("step 13 rollout", num_trajectories=96)
            progress.finish_trajectory(num_tokens=131)      # for each
            progress.start_phase("step 13 update")
            progress.finish_step()
    """

    def __init__(self, console: Console, *, num_steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            *([TimeElapsedColumn()] if console.width >= _WIDE else []),
            TextColumn("[dim]eta"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
            disable=not console.is_interactive or num_steps == 0,
        )
        self._is_shown = console.is_interactive
        self._description = ""
        self._next_line_at = 0.0
        self._num_steps = num_steps
        self._run = self._progress.add_task("run", total=num_steps, detail="")
        self._stage: TaskID | None = None
        self._num_steps_done = 0
        self._num_trajectories = 0
        self._num_trajectories_done = 0
        self._num_tokens = 0
        self._rollout_started_at = time.monotonic()
        self._show_steps()

    def start_rollout(self, description: str, *, num_trajectories: int) -> None:
        """Begin a rollout of `num_trajectories`, in training or in validation."""
        self._num_trajectories = num_trajectories
        self._num_trajectories_done = 0
        self._num_tokens = 0
        self._rollout_started_at = time.monotonic()
        self._description, self._next_line_at = description, self._rollout_started_at + _FIRST_LINE_AFTER_S
        self._replace_stage(description, total=num_trajectories)
        self._show_trajectories()

    def finish_trajectory(self, *, num_tokens: int) -> None:
        """Count one finished trajectory and its sampled tokens."""
        self._num_trajectories_done += 1
        self._num_tokens += num_tokens
        self._show_trajectories()

    def start_phase(self, description: str) -> None:
        """Show a phase of unknown length, such as the update."""
        self._replace_stage(description, total=None)

    def resume(self, *, num_steps_done: int) -> None:
        """Set the number of steps that an earlier process has done."""
        self._num_steps_done = num_steps_done
        self._show_steps()

    def finish_step(self) -> None:
        """Count one more step as done."""
        self._num_steps_done += 1
        self._show_steps()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _replace_stage(self, description: str, *, total: int | None) -> None:
        # `Progress.reset` cannot remove a total.
        if self._stage is not None:
            self._progress.remove_task(self._stage)
        self._stage = self._progress.add_task(description, total=total, detail="")

    def _show_steps(self) -> None:
        detail = f"{self._num_steps_done}/{self._num_steps} steps"
        self._progress.update(self._run, completed=self._num_steps_done, detail=detail)

    def _show_trajectories(self) -> None:
        if self._stage is None:
            raise RuntimeError("no rollout to count for: call `start_rollout` first")
        now = time.monotonic()
        elapsed_s = now - self._rollout_started_at
        tokens_per_s = self._num_tokens / elapsed_s if elapsed_s > 0 else 0.0
        done = f"{self._num_trajectories_done:,}/{self._num_trajectories:,} trajectories"
        if not self._is_shown and now >= self._next_line_at:
            self._next_line_at = now + _LINE_EVERY_S
            logger.info("%s: %s, %s tokens/s", self._description, done, f"{tokens_per_s:,.0f}")
        self._progress.update(
            self._stage,
            total=self._num_trajectories,
            completed=self._num_trajectories_done,
            detail=f"{done} · {tokens_per_s:,.0f} tokens/s",
        )
