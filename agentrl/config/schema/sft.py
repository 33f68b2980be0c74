"""Config tree of a supervised warm start (`agentrl.runners.sft`)."""

from typing import Literal

from pydantic import Field

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.fields import (
    Amount,
    AmountOrZero,
    BelowOne,
    Count,
    CountOrZero,
    Section,
    resumable,
)
from agentrl.config.schema.observability import ObservabilitySection
from agentrl.config.schema.paths import FolderOrStore, InputFiles, InputPath, OutputFolder, RunFolder
from agentrl.config.schema.run import ModelSection


class SftRunSection(Section):
    """The folder of the run."""

    dir: RunFolder = None
    """Folder for everything of the run; `runs/<config name>` when absent."""


class SftDataSection(Section):
    """Whole dialogues, from JSONL or Parquet files: OpenAI messages, ShareGPT, or a prompt and its completion."""

    train_files: InputFiles = []
    """Files of dialogues, read in this order; a pattern (`data/*.parquet`) is all files that it matches, sorted."""
    validation_files: InputFiles = []
    """Files of held-out dialogues, or patterns; empty means no held-out loss."""
    messages_key: str = "messages"
    """Column that holds the messages. While this is the default, a row may have `conversations` (ShareGPT), `prompt` and
    `completion`, or `instruction`, `input` and `output` instead.
    """
    max_tokens: Count | None = None
    """Tokens of the longest dialogue that is trained on; absent: the model's number of positions."""
    overlong_dialogues: Literal["error", "drop"] = "error"
    """Treatment of longer dialogues: refuse the run, or leave them out and report their number."""


class SftTrainingSection(Section):
    """Length of the training, learning rate and batch sizes."""

    initial_weights: Literal["pretrained", "random"] = "pretrained"
    """`random` needs only a `config.json` in `model.path`; `pretrained` continues from the weights there."""
    num_steps: Count | None = None
    """Total number of optimiser updates; absent: as many as `num_epochs` needs."""
    num_epochs: Amount = 1.0
    """Passes over the dialogues, if `num_steps` is absent; the last update may start another one."""
    examples_per_step: Count = 128
    """Number of dialogues in one update."""
    learning_rate: BelowOne = 5e-6
    """AdamW learning rate at its peak."""
    warmup_steps: CountOrZero = 20
    """Updates over which the learning rate rises linearly."""
    final_learning_rate_fraction: AmountOrZero = 0.05
    """Share of the peak at which the falling learning rate ends."""
    weight_decay: AmountOrZero = 0.01
    """AdamW weight decay."""
    max_grad_norm: Amount = 1.0
    """Gradients are clipped to this global norm."""
    max_tokens_per_micro_batch: Count = resumable(4096)
    """Packed tokens of one forward pass."""
    activation_checkpointing: bool = resumable(False)
    """Recompute activations in the backward pass: less memory, about a third more time."""
    seed: int = 0
    """Seed of random weights, LoRA's factors and the order of the dialogues."""
    num_threads: CountOrZero = resumable(0)
    """CPU threads; 0: every core. The number changes the order of sums, and so the last bits of the weights."""


class SftValidationSection(Section):
    """The held-out loss, also measured before the first update and after the last."""

    every_steps: Count = resumable(50)
    """Updates between measurements."""


class SftCheckpointSection(Section):
    """Checkpoints, from which a stopped or killed run resumes."""

    every_steps: Count = resumable(50)
    """Updates between checkpoints; the last update and an interrupted run also write one."""
    dir: FolderOrStore | None = None
    """Folder of the checkpoints, or a URL that fsspec knows; `checkpoints` in `run.dir` when absent."""
    keep_last: Count = resumable(1)
    """Number of latest checkpoints kept; older ones are deleted."""


class SftConfig(Section):
    """The root of the tree."""

    run: SftRunSection = Field(default_factory=SftRunSection)
    data: SftDataSection = Field(default_factory=SftDataSection)
    model: ModelSection
    lora: LoraSection = Field(default_factory=LoraSection)
    training: SftTrainingSection = Field(default_factory=SftTrainingSection)
    validation: SftValidationSection = Field(default_factory=SftValidationSection)
    checkpoint: SftCheckpointSection = Field(default_factory=SftCheckpointSection)
    observability: ObservabilitySection = Field(default_factory=ObservabilitySection)
    tool_config_path: InputPath | None = None
    """Tool YAML whose schemas the system prompt lists for dialogues without a `tools` column."""
    output_dir: OutputFolder | None = resumable(None)
    """Folder for the trained model; `policy` in `run.dir` when absent."""
