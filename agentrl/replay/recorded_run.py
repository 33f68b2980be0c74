"""A run's record, as the stages of a replay read it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.config.load import LoadedConfig
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.run.plan import check_plugins
from agentrl.tools.base import ToolConfig
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.trajectories.summary import summarise_trajectory
from agentrl.types import Group, Prompt, Trajectory, TrajectoryRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Rollouts of one update, in the order in which they were taken."""

    step: int
    prompts: dict[str, Prompt]
    trajectories: list[Trajectory]
    fates: dict[str, str]
    """Recorded use of each trajectory, keyed by its id; empty if the run died before the selection."""

    @property
    def groups(self) -> list[Group]:
        """Groups in the order of their first trajectories."""
        by_prompt: dict[str, list[TrajectoryRef]] = {}
        for trajectory in self.trajectories:
            ref = TrajectoryRef(summary=summarise_trajectory(trajectory), ref=trajectory)
            by_prompt.setdefault(trajectory.prompt_id, []).append(ref)
        return [Group(prompt_id=prompt_id, trajectories=refs) for prompt_id, refs in by_prompt.items()]


class RecordedRun:
    """The record of the run that a config names."""

    def __init__(self, loaded: LoadedConfig) -> None:
        """Find the run and the user's modules; nothing is written.

        Raises:
            ConfigError: `run.dir` holds no recorded step.
        """
        self.loaded = loaded
        self.directory = RunDirectory(loaded.config)
        self.tools: Sequence[ToolConfig] = check_plugins(loaded, asks_servers=False)
        if not self.numbers:
            raise ConfigError(f"run.dir: {self.directory.path} holds no recorded step. Name the folder of a run")

    @property
    def config(self) -> RunConfig:
        """Config of the replay: that of the run, with what the command line changes."""
        return self.loaded.config

    @property
    def numbers(self) -> list[int]:
        """Recorded steps of training, ascending."""
        names = (path.stem.partition("_") for path in self.directory.trajectories.files())
        return [int(number) for kind, _, number in names if kind == "step"]

    def steps(self, wanted: Sequence[int] = ()) -> Iterator[RecordedStep]:
        """Yield the wanted steps, or all.

        Raises:
            ConfigError: a wanted step is not recorded.
            ValueError: a record is damaged.
        """
        numbers = self.numbers
        if missing := sorted(set(wanted) - set(numbers)):
            raise ConfigError(
                f"--step: {missing[0]} is not recorded. {self.directory.path} has steps {numbers[0]} to {numbers[-1]}"
            )
        for number in wanted or numbers:
            file = self.directory.trajectories.file(number)
            yield RecordedStep(
                step=number,
                prompts=read_prompts(file),
                trajectories=list(read_trajectories(file)),
                fates=self.directory.trajectories.fates(number),
            )
