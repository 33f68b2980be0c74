"""The knobs of what a run goes on from, and of the parts that it has: sections of `agentrl.config.schema`."""

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass(frozen=True)
class CheckpointSection:
    """What a killed run goes on from."""

    every_steps: int = 10
    """Write a checkpoint after every so many updates, and after the last of each stage; training goes on meanwhile."""
    dir: str | None = None
    """Folder of the checkpoints, or a URL that fsspec knows, such as `s3://bucket/runs/demo`, whose address and keys come from
    the environment; `checkpoints` in `run.dir` when absent.
    """
    keep_last: int = 2
    """Older checkpoints are deleted."""
    keep_best: int = 1
    """Checkpoints with the highest validation accuracy that are kept beside the last ones, where there is any validation."""


@dataclass(frozen=True)
class StageSection:
    """A part of the run with lengths, data or a reference of its own; what a stage leaves out is as in the sections above."""

    num_steps: int = MISSING
    """Actor updates of this stage."""
    max_response_tokens: int | None = None
    """In place of `rollout.max_response_tokens`."""
    max_turns: int | None = None
    """In place of `rollout.max_turns`."""
    train_files: list[str] | None = None
    """In place of `data.train_files`."""
    max_pass_rate: float | None = None
    """Leave out prompts of which a larger share was solved when they were last rolled out in this run, before this stage."""
    reset_optimiser: bool = False
    """Begin with an optimiser that remembers nothing, and with the warm-up of the learning rate."""
    update_reference: bool = False
    """From here on, measure the KL term against the policy that this stage begins with."""
