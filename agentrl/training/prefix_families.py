"""What sequences begin with in common, so that it is computed once, and what a packed sequence costs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.training.batch import TokenSequence

_MIN_SHARED = 8
"""Shorter beginnings are not worth the further attention calls."""

_MIN_SHARED_CONTEXT = 64
"""The `_MIN_SHARED` of sequences of different prompts, each of which makes a segment of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Sequences that stand next to each other in a row behind what they share.

    Example: sequences 3 and 1 with a prompt of 20 tokens in common: `Family(members=(3, 1), num_shared=20)`.
    """

    members: tuple[int, ...]
    """Longest first."""
    num_shared: int
    """Tokens that all of them begin with, and that the row has once; 0: nothing is shared."""

    def num_tokens(self, lengths: Sequence[int]) -> int:
        """Return the tokens that are computed, given the length of every sequence."""
        return self.num_shared + sum(lengths[member] - self.num_shared for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCost:
    """How the time of a sequence grows with its length: linear layers with L, attention with L squared.

    Both are equal at `quadratic_length` tokens: with P weights in the linear layers of a decoder of N layers whose heads
    are together A wide, a token costs 6 P operations there, and in causal attention over L tokens 6 L N A (forward and
    backward), so the length is P / (N A).
    """

    quadratic_length: float = 12 * 4096
    """Tokens at which attention costs as much as all linear layers; a decoder has about 12 times its width."""

    def of(self, family: Family, lengths: Sequence[int]) -> float:
        """Return the cost of a family, in tokens of a very short sequence."""
        shared = family.num_shared
        squares = shared**2 + sum(lengths[member] ** 2 - shared**2 for member in family.members)
        return family.num_tokens(lengths) + squares / self.quadratic_length


def families_of(sequences: "Sequence[TokenSequence]", *, max_tokens: int, share_prefixes: bool) -> list[Family]:
    """Find the sequences that begin alike; a family of more than `max_tokens` is divided, each part with its own prefix.

    Sequences belong together when all tokens before the first sampled one agree: those of one prompt. They may agree
    further. Those that are alone with their prompt belong together when they begin with a long context in common, such as
    demonstrations with one system text and the same tools. The last token of a sequence is never shared: it is not computed.
    """
    ids = [sequence.token_ids for sequence in sequences]
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, sequence in enumerate(sequences):
        prompt = tuple(_before_the_first_sampled(sequence))
        # One that has nothing worth sharing has a key of its own.
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
    """Group sequences of different prompts by the context that they begin with, such as one system text with its tools."""
    ordered = sorted(numbers, key=lambda number: ids[number])
    common = [0, *(_common_length([ids[a], ids[b]]) for a, b in pairwise(ordered)), 0]
    groups: list[list[int]] = []
    for place, number in enumerate(ordered):
        # Where a neighbour shares more than twice as much with its other one, joining all three computes more.
        enough = max(_MIN_SHARED_CONTEXT, max(common[max(0, place - 1)], common[place + 1]) // 2)
        if common[place] >= enough:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _before_the_first_sampled(sequence: "TokenSequence") -> list[int]:
    sampled = sequence.response_mask.index(1) if 1 in sequence.response_mask else len(sequence.token_ids)
    return sequence.token_ids[:sampled]


def _divided(members: list[int], ids: Sequence[list[int]], max_tokens: int) -> list[Family]:
    """Return members that begin alike as families that fit into a row, longest members first."""
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
    """Return how many tokens all begin with, at most all but the last of the shortest."""
    # Whatever the least and the greatest in lexical order have in common, all have.
    first, last = min(sequences), max(sequences)
    limit = min(len(sequence) for sequence in sequences) - 1
    for position in range(limit):
        if first[position] != last[position]:
            return position
    return limit
