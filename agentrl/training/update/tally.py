"""Sums and extremes over the tokens of an update, kept on the device, and reduced over the ranks once."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.training.parallel import Parallel


class TokenTally:
    """Sums and extremes of one optimiser update. All ranks must use the same names in the same order."""

    def __init__(self) -> None:
        """Start empty."""
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._minima: dict[str, Tensor] = {}

    def add(self, **sums: Tensor) -> None:
        """Add scalars to the named sums."""
        for name, value in sums.items():
            value = value.detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def raise_to(self, **maxima: Tensor) -> None:
        """Raise the named maxima to these scalars, if greater."""
        for name, value in maxima.items():
            value = value.detach().double()
            self._maxima[name] = torch.maximum(self._maxima[name], value) if name in self._maxima else value

    def lower_to(self, **minima: Tensor) -> None:
        """Lower the named minima to these scalars, if smaller."""
        for name, value in minima.items():
            value = value.detach().double()
            self._minima[name] = torch.minimum(self._minima[name], value) if name in self._minima else value

    def reduce(self, parallel: Parallel) -> "Reduced":
        """Return sums and extremes over all ranks."""
        sums = parallel.sum([value.item() for value in self._sums.values()])
        maxima = parallel.max([value.item() for value in self._maxima.values()])
        negated = parallel.max([-value.item() for value in self._minima.values()])
        return Reduced(
            sums=dict(zip(self._sums, sums, strict=True)),
            maxima=dict(zip(self._maxima, maxima, strict=True)),
            minima={name: -value for name, value in zip(self._minima, negated, strict=True)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The tally of one optimiser update over all ranks, by name."""

    sums: dict[str, float]
    maxima: dict[str, float]
    minima: dict[str, float]


class UpdateStats:
    """The metrics of one step, over its optimiser updates: means per sampled token, and extremes."""

    def __init__(self, *, num_epochs: int) -> None:
        """Start empty; each token takes part in `num_epochs` updates."""
        self._num_epochs = num_epochs
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}
        self._minima: dict[str, float] = {}
        self._grad_norms: list[float] = []
        self._num_tokens = 0.0

    def add(self, tally: Reduced, *, num_tokens: float, grad_norm: float) -> None:
        """Add the tally of one optimiser update over `num_tokens` sampled tokens."""
        for name, value in tally.sums.items():
            self._sums[name] += value
        for name, value in tally.maxima.items():
            self._maxima[name] = max(value, self._maxima.get(name, value))
        for name, value in tally.minima.items():
            self._minima[name] = min(value, self._minima.get(name, value))
        self._grad_norms.append(grad_norm)
        self._num_tokens += num_tokens

    def metrics(self) -> dict[str, float]:
        """Return the metrics `actor/...`."""
        means = {f"actor/{name}": total / self._num_tokens for name, total in self._sums.items()}
        extremes = {f"actor/{name}": value for name, value in (self._maxima | self._minima).items()}
        return {
            **means,
            **extremes,
            "actor/grad_norm": sum(self._grad_norms) / len(self._grad_norms),
            "actor/response_tokens": self._num_tokens / self._num_epochs,
        }
