"""Log-probability and entropy over a large vocabulary, chunk by chunk, so that the logits of all tokens never exist at once.

With logits x = W h / t, p = softmax(x) and log-probability l = x[target] - log sum exp x,

    dl/dx = onehot(target) - p,    entropy H = -sum p log p,    dH/dx = -p (log p + H).

The backward pass recomputes the logits of a chunk: one more matrix product instead of four arrays of `[N, V]`. The fused
kernels of libraries (PyTorch's `linear_cross_entropy` in chunks, Liger's) compute the gradient in the forward pass, before the
weights of tokens are known, and give no entropy.

Letters in shapes: N scored tokens, C tokens of a chunk, V vocabulary, W width of the decoder.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_MAX_LOGITS_ON_CPU = 2**25
"""Logits that exist at once, 128 MiB; with half as many (100 tokens at 150K) a matrix product takes a third longer."""
_MAX_LOGITS_ON_GPU = 2**28
"""Logits that exist at once, 1 GiB; each chunk costs memory bandwidth for the gradient of the whole head."""


def vocabulary_scores(
    hidden_NW: Tensor, head_VW: Tensor, targets_N: Tensor, *, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities `[N]` of the targets and entropies `[N]` in nats, float32; `temperature` divides the logits.

    States and head have the type of the computation. With `entropy_gradient` the entropy is differentiable.
    """
    logprobs_N, entropy_N = _VocabularyScores.apply(hidden_NW, head_VW, targets_N, temperature)  # type: ignore[misc]
    return logprobs_N, entropy_N if entropy_gradient else entropy_N.detach()


def chunk_size(vocabulary: int, device: torch.device) -> int:
    """Return the number of tokens whose logits are held at once."""
    budget = _MAX_LOGITS_ON_GPU if device.type == "cuda" else _MAX_LOGITS_ON_CPU
    return max(1, budget // vocabulary)


class _VocabularyScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NW: Tensor, head_VW: Tensor, targets_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        log_sums_N, logprobs_N, entropy_N = (
            torch.empty(len(targets_N), dtype=torch.float32, device=hidden_NW.device) for _ in range(3)
        )
        # All chunks share memory: on a CPU, touching new pages takes longer than computing with them.
        first, second = (_scratch(hidden_NW, head_VW) for _ in range(2))
        for chunk in _chunks(hidden_NW, head_VW):
            logits_CV = _logits(hidden_NW[chunk], head_VW, temperature, out=first)
            chosen_C = logits_CV.gather(1, targets_N[chunk].unsqueeze(1)).squeeze(1)
            # Relative to the maximum, against overflow.
            greatest_C = logits_CV.amax(dim=-1)
            powers_CV = torch.exp(logits_CV.sub_(greatest_C.unsqueeze(1)), out=second[: len(logits_CV)])
            sums_C = powers_CV.sum(dim=-1)
            mean_C = powers_CV.mul_(logits_CV).sum(dim=-1) / sums_C
            log_sums_N[chunk] = sums_C.log() + greatest_C
            logprobs_N[chunk] = chosen_C - log_sums_N[chunk]
            entropy_N[chunk] = sums_C.log() - mean_C
        ctx.save_for_backward(hidden_NW, head_VW, targets_N, log_sums_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_NW, head_VW, targets_N, log_sums_N, entropy_N = ctx.saved_tensors
        by_logprobs_N, by_entropy_N = gradients
        if by_logprobs_N is None:
            by_logprobs_N = torch.zeros_like(log_sums_N)
        grad_hidden_NW = torch.empty_like(hidden_NW) if ctx.needs_input_grad[0] else None
        # Chunks are added up in float32.
        grad_head_VW = torch.zeros_like(head_VW, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        scratch = _scratch(hidden_NW, head_VW)
        for chunk in _chunks(hidden_NW, head_VW):
            logits_CV = _logits(hidden_NW[chunk], head_VW, ctx.temperature, out=scratch)
            logprobs_CV = logits_CV.sub_(log_sums_N[chunk].unsqueeze(1))
            by_logits_CV = _by_logits(
                logprobs_CV,
                targets_N[chunk],
                by_logprobs_N[chunk] / ctx.temperature,
                None if by_entropy_N is None else by_entropy_N[chunk] / ctx.temperature,
                entropy_N[chunk],
            ).to(head_VW.dtype)
            if grad_hidden_NW is not None:
                torch.mm(by_logits_CV, head_VW, out=grad_hidden_NW[chunk])
            if grad_head_VW is not None:
                _add_product(grad_head_VW, by_logits_CV.T, hidden_NW[chunk])
        return grad_hidden_NW, None if grad_head_VW is None else grad_head_VW.to(head_VW.dtype), None, None


def _by_logits(
    logprobs_CV: Tensor, targets_C: Tensor, by_logprobs_C: Tensor, by_entropy_C: Tensor | None, entropy_C: Tensor
) -> Tensor:
    """Return the gradient with respect to the logits; may overwrite `logprobs_CV`."""
    if by_entropy_C is None:
        gradient_CV = logprobs_CV.exp_().mul_(-by_logprobs_C.unsqueeze(1))
    else:
        factor_CV = (
            (logprobs_CV + entropy_C.unsqueeze(1)).mul_(by_entropy_C.unsqueeze(1)).add_(by_logprobs_C.unsqueeze(1))
        )
        gradient_CV = logprobs_CV.exp_().mul_(factor_CV).neg_()
    return gradient_CV.scatter_add_(1, targets_C.unsqueeze(1), by_logprobs_C.unsqueeze(1))


def _scratch(hidden_NW: Tensor, head_VW: Tensor) -> Tensor:
    """Return memory for the logits of a chunk, float32."""
    size = min(len(hidden_NW), chunk_size(head_VW.shape[0], hidden_NW.device))
    return torch.empty(size, head_VW.shape[0], dtype=torch.float32, device=hidden_NW.device)


def _logits(hidden_CW: Tensor, head_VW: Tensor, temperature: float, *, out: Tensor) -> Tensor:
    """Return `[C, V]`, float32, in the first rows of `out`."""
    logits_CV = out[: len(hidden_CW)]
    if head_VW.dtype == out.dtype:
        torch.mm(hidden_CW, head_VW.T, out=logits_CV)
    else:
        logits_CV.copy_(hidden_CW @ head_VW.T)
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _chunks(hidden_NW: Tensor, head_VW: Tensor) -> Iterator[slice]:
    size = chunk_size(head_VW.shape[0], hidden_NW.device)
    return (slice(start, start + size) for start in range(0, len(hidden_NW), size))
