"""Packing into rows of balanced cost, because ranks wait for the slowest row in every pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.training.packing.families import Family, SequenceCost

if TYPE_CHECKING:
    from agentrl.training.packing.sequences import TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Settings of packing. Example: `Packing(max_tokens=16384)`."""

    max_tokens: int
    """Limit of computed tokens per row; a longer single sequence has a row of its own."""
    share_prefixes: bool = True
    """Compute common prefixes of sequences once per row."""
    cost: SequenceCost = field(default_factory=SequenceCost)
    """Cost to be balanced."""


def balanced_bins(
    families: Sequence[Family], sequences: "Sequence[TokenSequence]", packing: Packing, *, min_bins: int = 0
) -> list[list[Family]]:
    """Distribute families over as few rows as first-fit decreasing finds, with balanced costs.

    Args:
        families: families, each kept whole; one larger than `max_tokens` has a row of its own.
        sequences: sequences that the families' members index.
        packing: limit and cost.
        min_bins: least number of rows, if there are as many families.

    Returns:
        The rows, costliest first, so that the costly rows of all ranks run at the same time.
    """
    lengths = [len(sequence.token_ids) for sequence in sequences]
    sizes = [family.num_tokens(lengths) for family in families]
    costs = [packing.cost.of(family, lengths) for family in families]
    fewest = _first_fit(sizes, packing.max_tokens)
    count = min(len(families), max(len(fewest), min_bins))
    bins = _balanced(sizes, costs, packing.max_tokens, count) or fewest
    bins.sort(key=lambda members: -sum(costs[index] for index in members))
    # Neighbours of similar length share attention calls.
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


def _balanced(sizes: Sequence[int], costs: Sequence[float], max_tokens: int, count: int) -> list[list[int]] | None:
    """Put each family, costliest first, into the cheapest bin with room; None if one fits nowhere."""
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
