"""Every knob of a supervised warm start (`agentrl.runners.sft`), in a tree of its own."""

from dataclasses import dataclass, field
from typing import Literal

from omegaconf import MISSING

from agentrl.config.schema import ModelSection


@dataclass(frozen=True)
class SftDataSection:
    """Whole dialogues: JSONL with a column of chat messages, tool calls and tool results included."""

    train_files: list[str] = MISSING
    """Files of dialogues, read in this order."""
    messages_key: str = "messages"
    """Column that holds the chat messages."""


@dataclass(frozen=True)
class SftTrainingSection:
    """How long, how fast, and on how much at a time."""

    initial_weights: Literal["pretrained", "random"] = "pretrained"
    """`random` needs only a `config.json` in `model.path`; `pretrained` goes on from the weights there."""
    num_steps: int = 1000
    """Optimiser updates in all."""
    examples_per_step: int = 128
    """Dialogues of one update."""
    learning_rate: float = 5e-6
    """AdamW learning rate at its peak."""
    warmup_steps: int = 20
    """Updates over which the learning rate rises linearly."""
    final_learning_rate_fraction: float = 0.05
    """Share of the peak at which the falling learning rate ends."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    adam_beta1: float = 0.9
    """AdamW first-moment decay."""
    adam_beta2: float = 0.98
    """AdamW second-moment decay."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this global norm."""
    max_tokens_per_micro_batch: int = 4096
    """Packed tokens of one forward pass."""
    seed: int = 0
    """Seeds random weights and the order of the dialogues."""
    num_threads: int = 0
    """CPU threads; 0 takes every core. Another number sums in another order, so the weights differ in their last bits."""


@dataclass(frozen=True)
class SftConfig:
    """The root of the tree."""

    data: SftDataSection = field(default_factory=SftDataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: SftTrainingSection = field(default_factory=SftTrainingSection)
    tool_config_path: str | None = None
    """Tool YAML whose schemas the dialogues' system prompt lists."""
    output_dir: str = MISSING
    """Where the trained model folder is written; may be `model.path` itself."""
