"""The optimiser, its learning rates, and a step that refuses numbers that are not finite."""

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from agentrl.config.schema.run import ActorSection
from agentrl.config.schema.sft import SftTrainingSection

TrainingSection = ActorSection | SftTrainingSection


def build_adamw(model: nn.Module, *, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW (arXiv:1711.05101) over the weights that are not frozen; `apply_gradients` sets the learning rate."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=0.0, betas=betas, weight_decay=weight_decay, fused=True)


def learning_rate_at(step: int, section: TrainingSection, *, decay_steps: int) -> float:
    """Return the learning rate of update `step`, from 1, counted from the start of the warm-up.

    Linear up to the peak, then half a cosine (arXiv:1608.03983) until update `decay_steps`; constant if that is 0.
    """
    peak, warmup_steps = section.learning_rate, section.warmup_steps
    if step <= warmup_steps:
        return peak * (step / warmup_steps)
    if decay_steps == 0:
        return peak
    final = section.final_learning_rate_fraction
    progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def apply_gradients(
    model: nn.Module, optimiser: torch.optim.Optimizer, *, learning_rate: float, max_grad_norm: float, step: int
) -> float:
    """Clip the gradients to the global norm `max_grad_norm`, update the weights, clear the gradients; return the norm before.

    Raises:
        FloatingPointError: the norm is not finite; the weights are then untouched.
    """
    total = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
    require_finite("gradient norm", norm, step)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return norm


def require_finite(what: str, value: float, step: int) -> None:
    """Raise FloatingPointError if `value` is not a finite number."""
    if not math.isfinite(value):
        raise FloatingPointError(
            f"update {step}: {what} is {value}; the weights were not changed. Look at `actor/ratio_max` and "
            "`actor/grad_norm` of the steps before, then lower `actor.learning_rate` or compute in float32"
        )
