"""The update of a recorded step once more: forward, backward and optimiser, on the same layout of processes.

It starts the run's models and engines, restores the checkpoint before the step, and updates on the recorded trajectories.
It compares the metrics of the step, and the state of models and optimisers where the run kept a checkpoint after it.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.algorithms.group_filter import select
from agentrl.cluster.launch import launch
from agentrl.cluster.learner import Learner
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.run_history import RunHistory
from agentrl.errors import ConfigError
from agentrl.observability.metrics_file import read_metrics
from agentrl.replay.recorded_run import RecordedRun, RecordedStep
from agentrl.replay.selection import replay_selection
from agentrl.training.checkpoint import first_difference

_MODELS = ("actor", "critic")
_OF_THE_MACHINE = ("_s", "_per_s", "mfu", "bytes_max", "restarts")
"""Ends of the names of metrics that say how fast an update was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReplay:
    """Result of an update on recorded trajectories."""

    num_trajectories: int
    metrics: Mapping[str, tuple[float | None, float]]
    """Recorded and new value of each metric of the models."""
    state_differs_at: str | None
    """First entry of the state after the step that differs from the checkpoint; None if none does."""
    has_state: bool
    """True if the run kept a checkpoint after the step."""

    @property
    def changed(self) -> dict[str, tuple[float | None, float]]:
        """Metrics that differ."""
        return {name: pair for name, pair in self.metrics.items() if pair[0] != pair[1]}


def require_replayable(run: RecordedRun, recorded: RecordedStep) -> None:
    """Refuse what a replay could not reproduce.

    Raises:
        ConfigError: the checkpoint before the step is gone, the record lacks what the update read, or the selection differs.
    """
    config, step, checkpoints = run.config, recorded.step, run.directory.checkpoints
    if config.rollout.replay_routing:
        raise ConfigError(
            "`rollout.replay_routing`: the record has no experts of the tokens, so no update can be replayed"
        )
    if config.stages:
        raise ConfigError("`stages`: the update of a run in stages cannot be replayed")
    if step > 1 and checkpoints.state(step - 1) is None:
        kept = ", ".join(str(state.step) for state in checkpoints.states()) or "none"
        raise ConfigError(
            f"--step: {step} needs the checkpoint of step {step - 1}, and {checkpoints.url} has: {kept}. A run with "
            "`checkpoint.every_steps: 1` and a high `checkpoint.keep_last` keeps them"
        )
    if changed := replay_selection(recorded, config).changed:
        name, (before, after) = next(iter(changed.items()))
        raise ConfigError(f"step {step}: the selection differs, first at {name}: `{before}` recorded, now `{after}`")


async def replay_update(run: RecordedRun, recorded: RecordedStep) -> UpdateReplay:
    """Update the models of the step's beginning on its recorded trajectories.

    Raises:
        ConfigError: see `require_replayable`.
    """
    require_replayable(run, recorded)
    config, step = run.config, recorded.step
    groups, _ = select(recorded.groups, config.algorithm.selection, seed=config.run.seed)
    rows = {row["step"]: row for row in read_metrics(run.directory.metrics)}
    with guarded_run() as temp_dir, tempfile.TemporaryDirectory(prefix="agentrl-replay-") as folder:
        user_folder = run.loaded.path.parent
        async with launch(config, temp_dir=temp_dir, user_folder=user_folder, history=RunHistory()) as cluster:
            if step > 1:
                await cluster.learner.load(run.directory.checkpoints.url_of(step - 1))
            metrics = await cluster.learner.update(groups, step=step)
            has_state = run.directory.checkpoints.state(step) is not None
            differs_at = await _state_difference(run, cluster.learner, step, Path(folder)) if has_state else None
    return UpdateReplay(
        num_trajectories=sum(len(group.trajectories) for group in groups),
        metrics={
            name: (rows.get(step, {}).get(name), value)
            for name, value in metrics.items()
            if not name.endswith(_OF_THE_MACHINE)
        },
        state_differs_at=differs_at,
        has_state=has_state,
    )


async def _state_difference(run: RecordedRun, learner: Learner, step: int, folder: Path) -> str | None:
    await learner.save(str(folder))
    while not await learner.saved():  # noqa: ASYNC110 - the models report it only when asked
        await asyncio.sleep(0.1)
    recorded = run.directory.checkpoints.url_of(step)
    for model in _MODELS:
        if (folder / model).exists():
            difference = first_difference(f"{recorded}/{model}", str(folder / model))
            if difference is not None:
                return f"{model}: {difference}"
    return None
