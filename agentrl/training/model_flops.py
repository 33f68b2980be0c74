"""Operations of an update, and what the device can do: their ratio is the model's FLOPs utilisation (arXiv:2204.02311, app. B).

Only what one forward and one backward pass need is counted: what is computed again to save memory is not.
"""

import time
from dataclasses import dataclass
from functools import cache

import torch

from agentrl.training.batch import PackedTokens
from agentrl.training.prefix_families import SequenceCost

_SIDE_ON_CPU = 512
_SIDE_ON_GPU = 8192
_NUM_PRODUCTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a model decides how much it computes. Example: `ModelShape(layer_weights=10**9, head_weights=10**8,
    num_layers=24, heads_width=2048)`.
    """

    layer_weights: int
    """Weights of all decoder layers together; of experts, those that a token goes through."""
    head_weights: int
    """Vocabulary times width."""
    num_layers: int
    heads_width: int
    """All query heads of a layer side by side."""
    is_frozen: bool = False
    """Whether the weights get no gradients, as beside LoRA's factors, which are too thin to count."""

    @property
    def cost(self) -> SequenceCost:
        """How the time of a sequence grows with its length."""
        return SequenceCost(quadratic_length=self.layer_weights / (self.num_layers * self.heads_width))

    def flops(self, tokens: PackedTokens) -> float:
        """Return the operations of a forward and a backward pass over a packed row."""
        layout = tokens.layout
        weights = self.layer_weights * sum(layout.lengths) + self.head_weights * len(tokens.scored_N)
        # Pairs of a query and a key: half a square for each segment on itself, a rectangle for continuations on their prefix.
        pairs = sum(length**2 for length in layout.lengths) / 2
        pairs += sum((prefix.suffix_end - prefix.end) * (prefix.end - prefix.start) for prefix in layout.prefixes)
        per_weight = 4.0 if self.is_frozen else 6.0  # a product forward, one for its input's gradient, one for its own
        return per_weight * weights + 12.0 * pairs * self.num_layers * self.heads_width


@cache
def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product on this device, with its present threads; best of a few."""
    side = _SIDE_ON_GPU if device.type == "cuda" else _SIDE_ON_CPU
    # Random, since a GPU is faster with numbers that are all the same; drawn apart from what training draws.
    draws = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, generator=draws, device=device).to(dtype) for _ in range(2))
    best_s = float("inf")
    for _ in range(_NUM_PRODUCTS):
        wait_for(device)
        started = time.perf_counter()
        torch.mm(left, right)
        wait_for(device)
        best_s = min(best_s, time.perf_counter() - started)
    return 2.0 * side**3 / best_s


def wait_for(device: torch.device) -> None:
    """Return when a GPU has done what it was given; without one nothing is outstanding."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
