"""Selection once more: which groups and trajectories does the config train on?"""

from collections import Counter
from dataclasses import dataclass

from agentrl.algorithms.group_filter import fates, select
from agentrl.config.schema.run import RunConfig
from agentrl.replay.recorded_run import RecordedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReplay:
    """Uses of a step's trajectories."""

    step: int
    fates: dict[str, str]
    """Use of each trajectory by the replay, keyed by its id."""
    changed: dict[str, tuple[str, str]]
    """Recorded and new use of those that differ."""

    @property
    def counts(self) -> Counter[str]:
        """Number of trajectories of each use."""
        return Counter(self.fates.values())


def replay_selection(recorded: RecordedStep, config: RunConfig) -> SelectionReplay:
    """Select from the recorded groups as an update with `config` does.

    A step that was refilled selected in rounds; the draws of a group depend on nothing but the seed and its prompt.
    """
    groups, selection = recorded.groups, config.algorithm.selection
    kept, _ = select(groups, selection, seed=config.run.seed)
    by_fate = fates(groups, kept, selection)
    replayed = {name: str(fate) for fate, names in by_fate.items() for name in names}
    changed = {
        name: (before, replayed[name])
        for name, before in recorded.fates.items()
        if name in replayed and replayed[name] != before
    }
    return SelectionReplay(step=recorded.step, fates=replayed, changed=changed)
