"""How a model that learns from trajectories is updated: the same keys for the actor and for the critic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateSection:
    """The optimiser, and how much it is given at a time."""

    learning_rate: float = 1e-6
    """AdamW learning rate after warm-up."""
    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly."""
    decay_steps: int = 0
    """Steps, those of the warm-up included, in which it falls along half a cosine to `final_learning_rate_fraction`, where it
    stays; 0 keeps it constant. A stage with `reset_optimiser` begins the count again.
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
    """Optimiser updates made from the trajectories of one step, each from a part of them; a divisor of
    `rollout.prompts_per_step`, though parts differ where groups were dropped. With 1, and one epoch, the policy is
    still the old one wherever the two are compared: every ratio is 1, and no clipping acts.
    """
    epochs_per_step: int = 1
    """Passes over those mini-batches, all compared with the model before the first (GRPO's mu, verl's `ppo_epochs`)."""
    max_tokens_per_micro_batch: int = 16384
    """Packed tokens of one forward pass on one rank; a longer single trajectory gets a pass of its own."""
