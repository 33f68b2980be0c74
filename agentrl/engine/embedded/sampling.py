"""Sampling of one token per row, with parameters and a random number per row.

Shapes: B rows, V vocabulary, K blocks of W ids.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from agentrl.types import SamplingParams

_BLOCK = 256
"""Block size of the two-level search for a token."""


def sample(
    logits_BV: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample a token id per row by inverting the cumulative distribution at the row's uniform number.

    A row's token depends only on its own logits, parameters and number, so a seed gives the same tokens in any batch.

    Args:
        logits_BV: raw logits, any float type.
        params: one per row.
        uniforms: [B], each in [0, 1); unused for greedy rows.

    Returns:
        Token ids and their log-probabilities (float32 arithmetic) after temperature and truncation. Greedy rows get the
        untempered log-probability, as in vLLM: under a point mass it would always be 0. A row with NaN or +inf in its logits
        gets a non-finite log-probability and a meaningless token.
    """
    device = logits_BV.device
    logits_BV = logits_BV.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        logits_BV = logits_BV / torch.tensor([p.temperature or 1.0 for p in params], device=device)[:, None]
    if any(p.temperature and (p.top_k or p.top_p < 1.0) for p in params):
        logits_BV = _truncate(logits_BV, params)
    probs_BV = logits_BV.softmax(-1)
    uniforms_B = torch.tensor(uniforms, dtype=torch.float64, device=device)
    ids_B1 = _invert_distribution(probs_BV, uniforms_B[:, None])
    if any(p.temperature == 0.0 for p in params):
        greedy_B1 = torch.tensor([p.temperature == 0.0 for p in params], device=device)[:, None]
        ids_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), ids_B1)
    return ids_B1[:, 0].tolist(), probs_BV.gather(1, ids_B1)[:, 0].log().tolist()


def _invert_distribution(probs_BV: torch.Tensor, uniforms_B1: torch.Tensor) -> torch.Tensor:
    """Return the id [B, 1] at which each row's cumulative distribution passes its uniform number.

    The search finds a block of the vocabulary first, then the id in it: a cumulative sum over the whole vocabulary took a
    quarter of a decoding step, and float64 copies of all probabilities an eighth. The cumulative sums are float64, so that
    `uniform * total < total`: an id of probability 0 is never returned.
    """
    num_ids = probs_BV.shape[1]
    blocks_BKW = functional.pad(probs_BV, (0, -num_ids % _BLOCK)).unflatten(1, (-1, _BLOCK))
    block_ends_BK = blocks_BKW.sum(-1).cumsum(-1, dtype=torch.float64)
    targets_B1 = uniforms_B1 * block_ends_BK[:, -1:]
    blocks_B1 = torch.searchsorted(block_ends_BK, targets_B1, right=True).clamp_(max=blocks_BKW.shape[1] - 1)
    starts_B1 = functional.pad(block_ends_BK, (1, 0)).gather(1, blocks_B1)
    cdf_BW = blocks_BKW[torch.arange(len(blocks_B1), device=blocks_B1.device), blocks_B1[:, 0]].cumsum(
        -1, dtype=torch.float64
    )
    # The two sums of a block differ by float32 rounding.
    below_end_B1 = torch.nextafter(cdf_BW[:, -1:], torch.zeros_like(targets_B1))
    inner_B1 = torch.searchsorted(cdf_BW, torch.minimum(targets_B1 - starts_B1, below_end_B1), right=True)
    return (blocks_B1 * _BLOCK + inner_B1).clamp_(max=num_ids - 1)


def _truncate(logits_BV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Set the logits outside top-k and then top-p to -inf; the likeliest token always stays."""
    vocabulary, device = logits_BV.shape[1], logits_BV.device
    truncated = [p if p.temperature else None for p in params]
    top_k_B1 = torch.tensor([p.top_k if p and p.top_k else vocabulary for p in truncated], device=device)[:, None]
    # Rounding can lift the sum of a row over 1, so "keep everything" is a larger number.
    top_p_B1 = torch.tensor([p.top_p if p and p.top_p < 1.0 else 2.0 for p in truncated], device=device)[:, None]
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    sorted_BV = sorted_BV.masked_fill(torch.arange(vocabulary, device=device) >= top_k_B1, -torch.inf)
    probs_BV = sorted_BV.softmax(-1)
    outside_BV = (probs_BV.cumsum(-1) - probs_BV >= top_p_B1) | sorted_BV.isneginf()
    outside_BV[:, 0] = False
    return logits_BV.masked_fill(outside_BV.scatter(1, order_BV, outside_BV), -torch.inf)
