"""Keys of a model update, shared by the actor and the critic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateSection:
    """The optimiser, and its batch sizes."""

    learning_rate: float = 1e-6
    """AdamW learning rate after warm-up."""
    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly."""
    decay_steps: int = 0
    """Steps, warm-up included, after which the learning rate has fallen along half a cosine to `final_learning_rate_fraction`,
    where it stays; 0 keeps it constant. A stage with `reset_optimiser` restarts the count.
    """
    final_learning_rate_fraction: float = 0.1
    """Share of the learning rate at the end of the decay."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    adam_beta1: float = 0.9
    """AdamW first-moment decay."""
    adam_beta2: float = 0.999
    """AdamW second-moment decay."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this global norm."""
    mini_batches_per_step: int = 1
    """Optimiser updates per step, each on a part of its trajectories; a divisor of `rollout.prompts_per_step`, though parts
    differ in size after groups were dropped. With 1 and one epoch, every ratio is 1 and no clipping takes effect.
    """
    epochs_per_step: int = 1
    """Passes over these mini-batches; ratios refer to the model before the first (GRPO's mu, verl's `ppo_epochs`)."""
    max_tokens_per_micro_batch: int = 16384
    """Packed tokens of one forward pass on one rank; a longer trajectory gets a pass of its own."""
