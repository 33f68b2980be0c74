"""Packed rows that take about as long as each other: ranks wait for the slowest of them in every pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.training.prefix_families import Family, SequenceCost

if TYPE_CHECKING:
    from agentrl.training.batch import TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How sequences become packed rows. Example: `Packing(max_tokens=16384)`."""

    max_tokens: int
    """Computed tokens of a row; a longer single sequence has a row of its own."""
    share_prefixes: bool = True
    """Compute what sequences of one prompt begin with in common once per row."""
    cost: SequenceCost = field(default_factory=SequenceCost)
    """What is evened out."""


def balanced_bins(
    families: Sequence[Family], sequences: "Sequence[TokenSequence]", packing: Packing, *, min_bins: int = 0
) -> list[list[Family]]:
    """Put families into as few rows as first-fit decreasing finds, of costs as even as can be.

    Args:
        families: each stays whole; one of more than `max_tokens` has a row of its own.
        sequences: what their members count.
        packing: limit and costs.
        min_bins: make as many, if there are as many families.

    Returns:
        The bins, the costliest first: where ranks work in step, their costly ones then meet.
    """
    lengths = [len(sequence.token_ids) for sequence in sequences]
    sizes = [family.num_tokens(lengths) for family in families]
    costs = [packing.cost.of(family, lengths) for family in families]
    fitting = _first_fit(sizes, packing.max_tokens)
    count = min(len(families), max(len(fitting), min_bins))
    bins = _evened(sizes, costs, packing.max_tokens, count) or fitting
    bins.sort(key=lambda members: -sum(costs[index] for index in members))
    # Neighbours of like length share attention calls.
    return [
        sorted((families[index] for index in members), key=lambda family: -lengths[family.members[0]])
        for members in bins
    ]


def _first_fit(sizes: Sequence[int], max_tokens: int) -> list[list[int]]:
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = next((b for b, room in enumerate(free) if sizes[index] <= room), None)
        if fitting is None:
            bins.append([])
            free.append(max_tokens)
            fitting = len(bins) - 1
        bins[fitting].append(index)
        free[fitting] -= sizes[index]
    return bins


def _evened(sizes: Sequence[int], costs: Sequence[float], max_tokens: int, count: int) -> list[list[int]] | None:
    """Give each family, costliest first, to the cheapest bin with room; None where one is left without."""
    bins: list[list[int]] = [[] for _ in range(count)]
    used, spent = [0] * count, [0.0] * count
    for index in sorted(range(len(sizes)), key=lambda i: (-costs[i], i)):
        with_room = [b for b in range(count) if not bins[b] or used[b] + sizes[index] <= max_tokens]
        if not with_room:
            return None
        cheapest = min(with_room, key=lambda b: (spent[b], b))
        bins[cheapest].append(index)
        used[cheapest] += sizes[index]
        spent[cheapest] += costs[index]
    return bins
