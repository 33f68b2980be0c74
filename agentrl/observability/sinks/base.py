"""The protocol of a sink, and the run as it is known to a tracker."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.schema.observability import ObservabilitySection

_ID_LENGTH = 21
"""SwanLab takes no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as trackers know it; every command of the run has the same one."""

    folder: Path
    run_id: str
    section: ObservabilitySection
    config: Mapping[str, Any]
    """The whole config as plain data, for the tracker's page of the run; it holds no secrets."""

    @property
    def name(self) -> str:
        """Name of the run, which others may have too."""
        return self.section.experiment_name or self.folder.resolve().name

    @property
    def unique_name(self) -> str:
        """Name of the run for a tracker that knows runs by their names alone."""
        return f"{self.name}-{self.run_id[:6]}"

    @property
    def is_online(self) -> bool:
        """True if the metrics go to the tracker's server."""
        return self.section.mode == "online"


class Sink(Protocol):
    """One tracker's end of a run. A class takes a `TrackedRun` and is built, called and closed in a thread of its own.

    Every method may raise anything and may take any time: `SinkThread` keeps that from the run.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Commit the metrics of `step`, all finite. A resumed run repeats the steps after its checkpoint."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def run_id_of(folder: Path) -> str:
    """Return the id of the run in a folder, under which trackers continue it after a restart; made at the first call."""
    file = folder / "run_id"
    if not file.is_file():
        partial = folder / "run_id.partial"
        partial.write_text(uuid.uuid4().hex[:_ID_LENGTH])
        partial.replace(file)
    return file.read_text()
