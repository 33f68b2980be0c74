"""TRL's GRPO loss, with given log-probabilities instead of a model."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer


def trl_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    ref_logprobs_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    weights_BT: Tensor | None = None,
    delta: float | None = None,
    **settings: Any,
) -> Tensor:
    """Return the loss of `GRPOTrainer._compute_loss` in evaluation mode, without accumulation.

    `weights_BT` are importance weights for the mismatch of engine and actor.
    """
    entropy_BT = torch.zeros_like(logprobs_BT) if entropy_BT is None else entropy_BT
    trainer: Any = SimpleNamespace(
        model=SimpleNamespace(training=False),
        importance_sampling_level="token",
        epsilon_low=0.2,
        epsilon_high=0.28,
        loss_type="bnpo",
        beta=0.0,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False),
        max_completion_length=logprobs_BT.shape[1],
        accelerator=SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value),
        aux_loss_enabled=False,
        use_vllm=weights_BT is not None,
        vllm_importance_sampling_correction=weights_BT is not None,
        use_adaptive_entropy=False,
        entropy_coef=0.0,
        _entropy_bonus_enabled="entropy_coef" in settings,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_BT, entropy_BT, None),
    )
    for name, value in settings.items():
        setattr(trainer, name, value)
    nothing = torch.zeros(len(mask_BT), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": torch.zeros_like(mask_BT, dtype=torch.long),
        "completion_mask": mask_BT.long(),
        "advantages": advantages_B,
        "old_per_token_logps": old_logprobs_BT,
        "ref_per_token_logps": ref_logprobs_BT,
        "importance_sampling_ratio": weights_BT,
        "num_items_in_batch": mask_BT.sum(),
    }
    return GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
