import dataclasses
import random

import pytest
import torch

from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import empty_micro_batch, fill_up, pack_examples, pack_tokens, pack_trajectories
from agentrl.training.packing.sequences import TokenisedExample
from tests.training.training_cases import make_trajectory


def test_the_next_token_shift_scores_sampled_tokens_only():
    first = TokenisedExample(token_ids=[5, 6, 7, 8, 9], response_mask=[0, 0, 1, 0, 1])
    second = TokenisedExample(token_ids=[3, 4], response_mask=[0, 1])
    packed = pack_tokens([first, second])
    assert packed.token_ids_T.tolist() == [5, 6, 7, 8, 3]
    assert packed.position_ids_T.tolist() == [0, 1, 2, 3, 0]
    assert packed.scored_N.tolist() == [1, 3, 4]
    assert packed.targets_N.tolist() == [7, 9, 4]


def test_tool_tokens_are_not_trained():
    draws = random.Random(0)
    trajectory = make_trajectory(draws, 0)
    [batch] = pack_trajectories([trajectory], [1.0], packing=Packing(max_tokens=100))
    assert len(batch.tokens.targets_N) == trajectory.num_response_tokens
    assert not torch.isnan(batch.rollout_logprobs_N).any()


def test_each_token_has_the_advantage_and_logprob_of_its_trajectory():
    draws = random.Random(0)
    short, long = make_trajectory(draws, 0, length=12), make_trajectory(draws, 1, length=30)
    [batch] = pack_trajectories([short, long], [0.5, -2.0], packing=Packing(max_tokens=100))
    expected = [(long, -2.0), (short, 0.5)]  # longest first
    assert batch.advantages_N.tolist() == [a for t, a in expected for _ in range(t.num_response_tokens)]
    logprobs = [
        p for t, _ in expected for p, sampled in zip(t.rollout_logprobs, t.response_mask, strict=True) if sampled
    ]
    assert batch.rollout_logprobs_N.tolist() == pytest.approx(logprobs)


def test_rows_have_no_padding():
    draws = random.Random(0)
    trajectories = [make_trajectory(draws, i, length=draws.randrange(12, 60)) for i in range(20)]
    batches = pack_trajectories(trajectories, [0.0] * 20, packing=Packing(max_tokens=150))
    assert sum(len(b.tokens.token_ids_T) for b in batches) == sum(len(t.token_ids) - 1 for t in trajectories)


def test_a_missing_rollout_logprob_is_an_error_and_never_zero():
    trajectory = make_trajectory(random.Random(0), 0)
    position = trajectory.response_mask.index(1)
    for value in (float("nan"), float("-inf")):
        logprobs = list(trajectory.rollout_logprobs)
        logprobs[position] = value
        with pytest.raises(ValueError, match="sampled token 0 has rollout log-probability"):
            pack_trajectories(
                [dataclasses.replace(trajectory, rollout_logprobs=logprobs)], [1.0], packing=Packing(max_tokens=100)
            )
    short = dataclasses.replace(trajectory, rollout_logprobs=trajectory.rollout_logprobs[:-1])
    with pytest.raises(ValueError, match="argument 2 is longer than argument 1"):
        pack_trajectories([short], [1.0], packing=Packing(max_tokens=100))


def test_a_mask_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="3 ids with 2 mask entries"):
        pack_examples([TokenisedExample(token_ids=[1, 2, 3], response_mask=[0, 1])], Packing(max_tokens=10))


def test_ranks_with_less_work_get_rows_without_scored_tokens():
    filled = fill_up([], empty_micro_batch(), 3)
    assert len(filled) == 3
    assert all(len(batch.tokens.scored_N) == 0 and len(batch.tokens.token_ids_T) == 1 for batch in filled)
