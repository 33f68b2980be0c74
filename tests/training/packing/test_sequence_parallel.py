"""Division of a packed row over a sequence group; `test_splits` has the gradients of real ranks."""

from typing import cast

import pytest
import torch
from torch import distributed

from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import empty_tokens, pack_tokens
from agentrl.training.packing.sequence_parallel import SequenceGroup
from agentrl.training.packing.sequences import TokenisedExample

CPU = torch.device("cpu")


def group(rank: int, size: int) -> SequenceGroup:
    """Return a group for code that never communicates."""
    return SequenceGroup(rank=rank, size=size, process_group=cast(distributed.ProcessGroup, None))


def row() -> PackedTokens:
    """Return a row of 11 tokens in two segments."""
    return pack_tokens(
        [
            TokenisedExample(token_ids=list(range(10, 18)), response_mask=[0, 0, 0, 1, 1, 0, 1, 1]),
            TokenisedExample(token_ids=list(range(30, 35)), response_mask=[0, 1, 1, 0, 1]),
        ]
    )


@pytest.mark.parametrize("size", [2, 3, 4, 12])
def test_the_parts_of_a_row_are_equal_and_add_up_to_the_row(size: int):
    whole = row()
    parts = [whole.to(CPU, group(rank, size)) for rank in range(size)]
    assert {len(part.token_ids_T) for part in parts} == {-(-11 // size)}
    for joined, expected in (
        (torch.cat([part.token_ids_T for part in parts]), whole.token_ids_T),
        (torch.cat([part.position_ids_T for part in parts]), whole.position_ids_T),
    ):
        assert joined[:11].tolist() == expected.tolist()
    assert sum(parts[0].layout.lengths) == size * len(parts[0].token_ids_T)
    assert parts[0].layout.lengths[:2] == whole.layout.lengths
    assert all(part.layout.lengths == parts[0].layout.lengths and part.num_scored == 7 for part in parts)
    places = [part.places_N for part in parts if part.places_N is not None]
    assert torch.cat(places).sort().values.tolist() == list(range(7))
    targets, scored_ids = torch.zeros(7, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    for part, places_N in zip(parts, places, strict=True):
        targets[places_N] = part.targets_N
        scored_ids[places_N] = part.token_ids_T[part.scored_N]
    assert targets.tolist() == whole.targets_N.tolist()
    assert scored_ids.tolist() == whole.token_ids_T[whole.scored_N].tolist()


def test_a_row_with_fewer_tokens_than_ranks_is_padded():
    for rank in range(4):
        part = empty_tokens().to(CPU, group(rank, 4))
        assert (len(part.token_ids_T), len(part.scored_N), part.layout.lengths) == (1, 0, (1, 3))


def test_a_divided_row_keeps_its_whole_layout():
    divided = row().to(CPU, group(1, 2))
    assert (divided.num_scored, divided.layout.lengths, len(divided.token_ids_T)) == (7, (7, 4, 1), 6)
