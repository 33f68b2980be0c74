"""Grouping of sequences with a common prefix, which is computed once, and costs of packed sequences."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.training.packing.sequences import TokenSequence

_MIN_SHARED = 8
"""Minimum length of a shared prefix; shorter ones are not worth the extra attention calls."""

_MIN_SHARED_CONTEXT = 64
"""`_MIN_SHARED` for sequences of different prompts, each of which adds a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Sequences that follow their shared prefix in a row.

    Example: sequences 3 and 1 with a prompt of 20 tokens in common: `Family(members=(3, 1), num_shared=20)`.
    """

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


def families_of(sequences: "Sequence[TokenSequence]", *, max_tokens: int, share_prefixes: bool) -> list[Family]:
    """Group sequences by common prefix; a family of more than `max_tokens` is divided, each part with its own prefix.

    Sequences of one prompt, which agree up to the first sampled token, form a family, and may share more than the prompt.
    Others form a family if they share a long context, such as demonstrations with the same system text and tools. The last
    token of a sequence is never shared, because it is not computed.
    """
    ids = [sequence.token_ids for sequence in sequences]
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, sequence in enumerate(sequences):
        prompt = tuple(_prompt_of(sequence))
        # A sequence with nothing worth sharing gets a unique key.
        alike[prompt if share_prefixes and len(prompt) >= _MIN_SHARED else (-1 - number,)].append(number)
    groups = [members for members in alike.values() if len(members) > 1]
    alone = [members[0] for members in alike.values() if len(members) == 1]
    groups += _with_common_context(alone, ids) if share_prefixes else [[number] for number in alone]
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


def _prompt_of(sequence: "TokenSequence") -> list[int]:
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
    families.append(Family(members=tuple(part), num_shared=shared if len(part) > 1 else 0))
    return families


def _common_length(sequences: Sequence[list[int]]) -> int:
    """Return the length of the common prefix, at most all but the last token of the shortest."""
    # The prefix of the first and last in lexical order is that of all.
    first, last = min(sequences), max(sequences)
    limit = min(len(sequence) for sequence in sequences) - 1
    for position in range(limit):
        if first[position] != last[position]:
            return position
    return limit
