"""SwanLab: `SWANLAB_API_KEY`, and `SWANLAB_API_HOST` for a server of one's own."""

from collections.abc import Mapping

import swanlab  # pyright: ignore[reportMissingImports]

from agentrl.observability.sinks.base import TrackedRun


class SwanlabSink:
    """An experiment of SwanLab, whose files are in `swanlab/` of the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = swanlab.init(
            log_dir=str(run.folder / "swanlab"),
            id=run.run_id,
            resume="allow",
            mode=run.section.mode,
            workspace=run.section.entity,
            project=run.section.project_name,
            name=run.name,
            group=run.section.group,
            tags=run.section.tags,
            config=dict(run.config),
            settings=swanlab.Settings(interactive=False),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Upload the rest."""
        self._run.finish()
