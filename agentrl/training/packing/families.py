"""Grouping of sequences with a common prefix, which is computed once, and costs of packed sequences."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agentrl.training.packing.sequences import TokenSequence, has_rows

_MIN_SHARED = 8
"""Minimum length of a shared prefix; shorter ones are not worth the extra attention calls."""

_MIN_SHARED_CONTEXT = 64
"""`_MIN_SHARED` for sequences of different prompts, each of which adds a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Sequences that follow their shared prefix in a row."""

    members: tuple[int, ...]
    """Indices of the sequences, longest first."""
    num_shared: int
    """Length of the shared prefix; 0: nothing is shared."""

    def num_tokens(self, lengths: Sequence[int]) -> int:
        """Return the number of computed tokens, given the length of every sequence."""
        return self.num_shared + sum(lengths[member] - self.num_shared for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCost:
    """Growth of the time of a sequence with its length L: linear layers with L, attention with L squared.

    Both are equal at `quadratic_length` tokens. With P weights in the linear layers of a decoder, N layers and A as the width
    of all heads together, a token costs 6 P operations there and 6 L N A in causal attention (forward and backward), so this
    length is P / (N A).
    """

    quadratic_length: float = 12 * 4096
    """Length at which attention costs as much as all linear layers; about 12 times a decoder's width."""

    def of(self, family: Family, lengths: Sequence[int]) -> float:
        """Return the cost of a family, in tokens of a very short sequence."""
        shared = family.num_shared
        squares = shared**2 + sum(lengths[member] ** 2 - shared**2 for member in family.members)
        return family.num_tokens(lengths) + squares / self.quadratic_length


def families_of(sequences: Sequence[TokenSequence], *, max_tokens: int, share_prefixes: bool) -> list[Family]:
    """Group sequences by common prefix; a family of more than `max_tokens` is divided, each part with its own prefix.

    Sequences of one prompt, which agree up to the first sampled token, form a family, and may share more than the prompt.
    Others form a family if they share a long context, such as demonstrations with the same system text and tools. The last
    token of a sequence is never shared, because it is not computed. A sequence of several dialogues shares nothing.
    """
    ids = [sequence.token_ids for sequence in sequences]
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, sequence in enumerate(sequences):
        prompt = tuple(_prompt_of(sequence))
        is_shared = share_prefixes and len(prompt) >= _MIN_SHARED and not has_rows(sequence)
        # A sequence with nothing worth sharing gets a unique key.
        alike[prompt if is_shared else (-1 - number,)].append(number)
    groups = [members for members in alike.values() if len(members) > 1]
    alone = [members[0] for members in alike.values() if len(members) == 1]
    single = [number for number in alone if share_prefixes and not has_rows(sequences[number])]
    groups += _with_common_context(single, ids) if single else []
    groups += [[number] for number in alone if number not in set(single)]
    families: list[Family] = []
    for members in sorted(groups, key=min):
        members.sort(key=lambda number: (-len(ids[number]), number))
        families += _divided(members, ids, max_tokens)
    return families


def _with_common_context(numbers: Sequence[int], ids: Sequence[list[int]]) -> list[list[int]]:
    """Group sequences of different prompts by a common context, such as a system text with tools."""
    ordered = sorted(numbers, key=lambda number: ids[number])
    common = [0, *(_common_length([ids[a], ids[b]]) for a, b in pairwise(ordered)), 0]
    groups: list[list[int]] = []
    for place, number in enumerate(ordered):
        # If a neighbour shares more than twice as much with its other neighbour, joining all three costs more.
        enough = max(_MIN_SHARED_CONTEXT, max(common[max(0, place - 1)], common[place + 1]) // 2)
        if common[place] >= enough:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _prompt_of(sequence: TokenSequence) -> list[int]:
    sampled = sequence.response_mask.index(1) if 1 in sequence.response_mask else len(sequence.token_ids)
    return sequence.token_ids[:sampled]


def _divided(members: list[int], ids: Sequence[list[int]], max_tokens: int) -> list[Family]:
    """Divide members with a common prefix into families that fit into a row, longest members first."""
    families: list[Family] = []
    shared = _common_length([ids[member] for member in members]) if len(members) > 1 else 0
    part: list[int] = []
    num_tokens = shared
    for member in members:
        rest = len(ids[member]) - shared
        if part and num_tokens + rest > max_tokens:
            families.append(Family(members=tuple(part), num_shared=shared if len(part) > 1 else 0))
            part, num_tokens = [], shared
        part.append(member)
        num_tokens += rest
    return [*families, Family(members=tuple(part), num_shared=shared if len(part) > 1 else 0)]


def _common_length(sequences: Sequence[list[int]]) -> int:
    """Return the length of the common prefix, at most all but the last token of the shortest."""
    # The prefix of the first and last in lexical order is that of all.
    first, last = min(sequences), max(sequences)
    limit = min(len(sequence) for sequence in sequences) - 1
    for position in range(limit):
        if first[position] != last[position]:
            return position
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Settings of packing."""

    max_tokens: int
    """Limit of computed tokens per row; a longer single sequence has a row of its own."""
    share_prefixes: bool = True
    cost: SequenceCost = field(default_factory=SequenceCost)


def balanced_bins(
    families: Sequence[Family], sequences: Sequence[TokenSequence], packing: Packing, *, min_bins: int = 0
) -> list[list[Family]]:
    """Distribute families over as few rows as first-fit decreasing finds, but at least `min_bins`, with balanced costs.

    A family is kept whole; one larger than `max_tokens` has a row of its own. The costliest rows come first, so that those of
    all ranks run at the same time.
    """
    lengths = [len(sequence.token_ids) for sequence in sequences]
    sizes = [family.num_tokens(lengths) for family in families]
    costs = [packing.cost.of(family, lengths) for family in families]
    fewest = _first_fit(sizes, packing.max_tokens)
    count = min(len(families), max(len(fewest), min_bins))
    bins = _balanced_within(sizes, costs, packing.max_tokens, count) or fewest
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


def balanced(costs: Sequence[float], count: int) -> list[list[int]]:
    """Put each index of `costs`, costliest first, into the cheapest of `count` bins."""
    return _balanced_within([0] * len(costs), costs, 0, count) or []


def _balanced_within(
    sizes: Sequence[int], costs: Sequence[float], max_tokens: int, count: int
) -> list[list[int]] | None:
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
