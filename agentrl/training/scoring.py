"""Log-probabilities that a policy gives to sampled tokens, without a float32 copy of all logits.

Letters in shapes: T packed tokens, N scored tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.training.batch import PackedTokens

_MAX_LOGITS_IN_FLOAT32 = 2**26
"""Elements that are converted at once: 256 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the model says about each scored token."""

    logprobs_N: Tensor
    """float32, differentiable where gradients are on."""
    entropy_N: Tensor
    """float32, in nats; differentiable where it was asked for."""


def score_tokens(
    model: nn.Module, tokens: PackedTokens, *, temperature: float, entropy_gradient: bool = False
) -> TokenScores:
    """Run the model over a packed row and score the tokens that were sampled.

    Args:
        model: from `load_model`, on the device of `tokens`.
        tokens: the row.
        temperature: divides the logits, as it did when the tokens were sampled.
        entropy_gradient: let gradients through the entropy as well, which takes the memory of one more copy of the logits.
    """
    logits_NV = model(
        input_ids=tokens.token_ids_T.unsqueeze(0),
        position_ids=tokens.position_ids_T.unsqueeze(0),
        use_cache=False,
        logits_to_keep=tokens.scored_N,
        buckets=tokens.buckets,
    ).logits[0]
    chunk_size = max(1, _MAX_LOGITS_IN_FLOAT32 // logits_NV.shape[-1])
    if logits_NV.shape[0] <= chunk_size:
        logprobs_N, entropy_N = _score(logits_NV, tokens.targets_N, temperature, entropy_gradient)
        return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N)
    chunks = [
        # Recomputed in the backward pass, so that only one chunk exists in float32 at a time.
        checkpoint(_score, logits, targets, temperature, entropy_gradient, use_reentrant=False)
        for logits, targets in zip(logits_NV.split(chunk_size), tokens.targets_N.split(chunk_size), strict=True)
    ]
    logprobs, entropies = zip(*chunks, strict=True)
    return TokenScores(logprobs_N=torch.cat(logprobs), entropy_N=torch.cat(entropies))


def _score(logits_NV: Tensor, targets_N: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    scaled_NV = logits_NV.float() / temperature
    logprobs_NV = scaled_NV.log_softmax(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
    return logprobs_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), entropy_N
