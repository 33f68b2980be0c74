"""The files of a run, as far as its report needs them; a run that goes on or has crashed is read as well."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import ValidationError

from agentrl.config.schema.run import RunConfig
from agentrl.detectors.curves import Curve, curves_of
from agentrl.detectors.scan import scan_files
from agentrl.detectors.user_detectors import load_detectors
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import MetricsRow, read_metrics
from agentrl.trajectories.heads import TrajectoryHead
from agentrl.trajectories.store import TrajectoryStore, read_heads

_MAX_BYTES = 128_000_000
"""Compressed bytes of trajectories that are read, in about 15 s; of a longer run every n-th step."""


@dataclass(slots=True, kw_only=True)
class FailedTries:
    """Trajectories whose last failed try has one cause."""

    failure_class: str
    cause: str
    num_tries: int = 0
    """Trajectories with a failed try."""
    num_lost: int = 0
    """Trajectories without a reward."""
    first_step: int
    example: str
    """Id of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as its files show it."""

    path: Path
    config: RunConfig
    rows: list[MetricsRow]
    files: list[Path]
    """Training rollouts that were read."""
    num_files: int
    """Training rollouts of the run."""
    last_file: Path | None
    """Latest validation, else the latest training rollout; None before the first step."""
    endings: Counter[str]
    """Trajectories by their termination."""
    failed_tries: list[FailedTries]
    fates: dict[int, Counter[str]]
    """Trajectories by their use in the update, keyed by step."""
    curves: list[Curve]

    @property
    def num_steps(self) -> int:
        """Finished updates."""
        return int(max((row["step"] or 0 for row in self.rows), default=0))


def read_run(run_dir: Path, detectors_config: Path | None = None) -> RunRecord:
    """Read a run, with the detectors' curves.

    Raises:
        ConfigError: the folder holds no run, or a detector is wrong.
        ValueError: a file is damaged.
    """
    file = run_dir / "config.yaml"
    try:
        config = RunConfig.model_validate(yaml.safe_load(file.read_text()))
    except FileNotFoundError as error:
        raise ConfigError(f"{run_dir}: no `config.yaml`, so no run. Name the `run.dir` of a run.") from error
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: it is no config of a training run of this release") from error
    detectors = load_detectors(detectors_config)
    metrics, store = run_dir / "metrics.jsonl", TrajectoryStore(run_dir)
    recorded = store.files()
    trained = [path for path in recorded if path.stem.startswith("step_")]
    files = _spread(trained)
    tally = _Tally()
    for path in files:
        for head in read_heads(path):
            tally.add(head, step=_step_of(path))
    return RunRecord(
        path=run_dir,
        config=config,
        rows=read_metrics(metrics) if metrics.exists() else [],
        files=files,
        num_files=len(trained),
        last_file=recorded[-1] if recorded else None,
        endings=tally.endings,
        failed_tries=sorted(tally.failed.values(), key=lambda tries: -tries.num_tries),
        fates={step: Counter(store.fates(step).values()) for step in map(_step_of, files)},
        curves=curves_of(scan_files(files, detectors), detectors) if files else [],
    )


@dataclass(slots=True)
class _Tally:
    endings: Counter[str] = field(default_factory=Counter)
    failed: dict[tuple[str, str], FailedTries] = field(default_factory=dict)

    def add(self, head: TrajectoryHead, *, step: int) -> None:
        self.endings[head.termination] += 1
        if not head.failure_class:
            return
        key = head.failure_class, head.failure_cause
        new = FailedTries(failure_class=key[0], cause=key[1], first_step=step, example=head.trajectory_id)
        tries = self.failed.setdefault(key, new)
        tries.num_tries += 1
        tries.num_lost += head.reward is None


def _spread(files: Sequence[Path]) -> list[Path]:
    """Return the files, or every n-th of them and the last, so that they are not too large to be read."""
    num_bytes = sum(file.stat().st_size for file in files)
    stride = 1 + num_bytes // _MAX_BYTES
    return [file for index, file in enumerate(files) if index % stride == 0 or index == len(files) - 1]


def _step_of(file: Path) -> int:
    return int(file.stem.rpartition("_")[2])
