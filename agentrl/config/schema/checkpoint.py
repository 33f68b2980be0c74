"""The sections `checkpoint` and `stages` of `agentrl.config.schema.run`."""

from agentrl.config.schema.fields import BelowOne, Count, CountOrZero, Section, resumable
from agentrl.config.schema.paths import FolderOrStore, InputFiles


class CheckpointSection(Section):
    """Checkpoints, from which a stopped or killed run resumes."""

    every_steps: Count = resumable(10)
    """Updates between checkpoints; the last update of each stage also writes one. Training continues while it is written."""
    dir: FolderOrStore | None = None
    """Folder of the checkpoints, or a URL that fsspec knows, such as `s3://bucket/runs/demo`, whose address and keys come from
    the environment; `checkpoints` in `run.dir` when absent.
    """
    keep_last: Count = resumable(2)
    """Number of latest checkpoints kept; older ones are deleted."""
    keep_best: CountOrZero = resumable(1)
    """Number of checkpoints with the highest validation accuracy kept in addition, if there is validation."""


class StageSection(Section):
    """A part of the run with its own lengths, data or reference; keys that a stage leaves out come from the other sections."""

    num_steps: Count
    """Actor updates of this stage."""
    max_response_tokens: Count | None = None
    """Value of `rollout.max_response_tokens` in this stage."""
    max_turns: Count | None = None
    """Value of `rollout.max_turns` in this stage."""
    train_files: InputFiles | None = None
    """Value of `data.train_files` in this stage."""
    max_pass_rate: BelowOne | None = None
    """Leave out prompts of which a larger share was solved in their last rollout before this stage."""
    reset_optimiser: bool = False
    """Start with a new optimiser state and the warm-up of the learning rate."""
    update_reference: bool = False
    """Use the policy at the start of this stage as the new reference of the KL term."""
