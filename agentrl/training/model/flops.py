"""Operations of an update, and the device's peak, for the model's FLOPs utilisation (arXiv:2204.02311, app. B).

Counts one forward and one backward pass; recomputed activations are not counted.
"""

import time
from dataclasses import dataclass
from functools import cache

import torch

from agentrl.training.packing.families import SequenceCost
from agentrl.training.packing.packed_tokens import PackedTokens

_SIDE_ON_CPU = 512
_SIDE_ON_GPU = 8192
_NUM_PRODUCTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model that determine its amount of computation."""

    layer_weights: int
    """Weights of all decoder layers together; of experts, those that a token uses."""
    head_weights: int
    """Vocabulary times width."""
    num_layers: int
    heads_width: int
    """Width of all query heads of a layer together."""
    is_frozen: bool = False
    """True if only LoRA's factors, too thin to count, get gradients."""

    @property
    def cost(self) -> SequenceCost:
        """Growth of the time of a sequence with its length."""
        return SequenceCost(quadratic_length=self.layer_weights / (self.num_layers * self.heads_width))

    def flops(self, tokens: PackedTokens) -> float:
        """Return the operations of a forward and a backward pass over a packed row."""
        layout = tokens.layout
        weights = self.layer_weights * sum(layout.lengths) + self.head_weights * tokens.num_scored
        # Pairs of a query and a key: half a square within each segment, a rectangle for continuations and their prefix.
        pairs = sum(length**2 for length in layout.lengths) / 2
        pairs += sum((prefix.suffix_end - prefix.end) * (prefix.end - prefix.start) for prefix in layout.prefixes)
        per_weight = 4.0 if self.is_frozen else 6.0  # products for output and gradients of the input and the weight
        return per_weight * weights + 12.0 * pairs * self.num_layers * self.heads_width


@cache
def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product on this device; best of a few."""
    side = _SIDE_ON_GPU if device.type == "cuda" else _SIDE_ON_CPU
    # Random, since a GPU is faster with equal numbers; not from the generator of the training.
    draws = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, generator=draws, device=device).to(dtype) for _ in range(2))
    best_s = float("inf")
    for _ in range(_NUM_PRODUCTS):
        synchronize(device)
        started = time.perf_counter()
        torch.mm(left, right)
        synchronize(device)
        best_s = min(best_s, time.perf_counter() - started)
    return 2.0 * side**3 / best_s


def synchronize(device: torch.device) -> None:
    """Wait for the work on a GPU; return at once without one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
