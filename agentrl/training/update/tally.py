"""Sums and extremes over the tokens of a step's update, kept on the device, and reduced over the ranks once."""

import torch
from torch import Tensor

from agentrl.training.parallel import Parallel


class TokenTally:
    """Sums and extremes of a step. All ranks must use the same names in the same order."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._minima: set[str] = set()  # their negated values are among the maxima

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
        self._minima |= minima.keys()
        self.raise_to(**{name: -value for name, value in minima.items()})

    def means(self, parallel: Parallel) -> dict[str, float]:
        """Return over all ranks each sum divided by the sum `tokens`, and the extremes."""
        sums = dict(zip(self._sums, parallel.sum([value.item() for value in self._sums.values()]), strict=True))
        maxima = parallel.max([value.item() for value in self._maxima.values()])
        num_tokens = sums.pop("tokens")
        means = {name: total / num_tokens for name, total in sums.items()}
        return means | {
            name: -value if name in self._minima else value for name, value in zip(self._maxima, maxima, strict=True)
        }
