"""Trackio: a space or a server named by `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL`; offline the database in `TRACKIO_DIR`."""

import os
from collections.abc import Mapping

import trackio  # pyright: ignore[reportMissingImports]

from agentrl.observability.sinks.base import TrackedRun


class TrackioSink:
    """A run of Trackio, which knows runs by their names."""

    def __init__(self, run: TrackedRun) -> None:
        if not run.is_online:  # Trackio has no such mode, and an empty argument is looked up
            for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
                os.environ.pop(variable, None)
        self._run = trackio.init(
            project=run.section.project_name,
            name=run.unique_name,
            group=run.section.group,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Store a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send the rest."""
        self._run.finish()
