"""Weights & Biases: `WANDB_API_KEY`, and `WANDB_BASE_URL` for a server of one's own."""

from collections.abc import Mapping

import wandb  # pyright: ignore[reportMissingImports]

from agentrl.observability.sinks.base import TrackedRun

_OPEN_S = 30.0
"""Wall clock for the server to answer at the start."""


class WandbSink:
    """A run of W&B, whose files are in `wandb/` of the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = wandb.init(
            dir=run.folder,
            id=run.run_id,
            resume="allow",
            mode=run.section.mode,
            project=run.section.project_name,
            entity=run.section.entity,
            name=run.name,
            group=run.section.group,
            tags=run.section.tags,
            config=dict(run.config),
            settings=wandb.Settings(console="off", silent=True, init_timeout=_OPEN_S),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Commit a step, unless W&B has it: it keeps the first values of a step that a resumed run repeats."""
        if step >= self._run.step:
            self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        """Upload the rest."""
        self._run.finish()
