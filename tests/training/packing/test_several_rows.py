"""A trajectory of several dialogues, one behind the other, against the same dialogues computed one by one."""

import random
from dataclasses import replace

import pytest
import torch

from agentrl.config.schema.run import ModelSection
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import members_of, pack_tokens, pack_trajectories, plan_rows
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.types import Trajectory
from tests.training.training_cases import make_trajectory


def in_rows(*rows: Trajectory) -> Trajectory:
    """Return one trajectory of several dialogues."""
    starts = [sum(len(row.token_ids) for row in rows[:index]) for index in range(1, len(rows))]
    return replace(
        rows[0],
        token_ids=[token_id for row in rows for token_id in row.token_ids],
        response_mask=[sampled for row in rows for sampled in row.response_mask],
        rollout_logprobs=[logprob for row in rows for logprob in row.rollout_logprobs],
        row_starts=tuple(starts),
    )


def cases() -> tuple[list[Trajectory], list[list[Trajectory]]]:
    """Return trajectories, and the dialogues of each."""
    draws = random.Random(5)
    dialogues = [[make_trajectory(draws, n, length=length) for length in (24, 13, 31)] for n in range(3)]
    dialogues.append([make_trajectory(draws, 3, length=20)])
    # Of one group, so that the first dialogues have a prompt in common that could be shared.
    prompt = dialogues[0][0].token_ids[:8]
    for rows in dialogues:
        rows[0] = replace(rows[0], token_ids=[*prompt, *rows[0].token_ids[8:]])
        rows[0] = replace(rows[0], response_mask=[0] * 8 + rows[0].response_mask[8:])
    return [in_rows(*rows) if len(rows) > 1 else rows[0] for rows in dialogues], dialogues


def test_a_row_has_positions_of_its_own_and_its_first_token_is_predicted_by_nothing():
    first, second = make_trajectory(random.Random(0), 0, length=12), make_trajectory(random.Random(1), 1, length=9)
    both, apart = pack_tokens([in_rows(first, second)]), pack_tokens([first, second])
    for name in ("token_ids_T", "position_ids_T", "scored_N", "targets_N", "uses_T"):
        assert torch.equal(getattr(both, name), getattr(apart, name))
    assert both.layout.lengths == apart.layout.lengths == (11, 8)


def test_a_row_without_a_prompt_is_refused():
    broken = in_rows(make_trajectory(random.Random(0), 0), make_trajectory(random.Random(1), 1))
    broken.response_mask[broken.row_starts[0]] = 1
    with pytest.raises(ValueError, match="needs a prompt"):
        pack_tokens([broken])


def test_logprobs_and_gradients_of_several_rows_equal_those_of_each_alone(policy: ModelSection):
    trajectories, dialogues = cases()
    model = load_model(policy).double()
    advantages = [0.5, -1.0, 2.0, 0.25]
    packing = Packing(max_tokens=90)
    sums: dict[int, torch.Tensor] = {}
    for row in plan_rows(trajectories, packing):
        scores = score_tokens(model, pack_tokens(trajectories, row), temperature=1.0).logprobs_N
        counts = [trajectories[member].num_response_tokens for member in members_of(row)]
        sums |= dict(zip(members_of(row), scores.split(counts), strict=True))
    loss = sum((advantages[n] * sums[n].sum() for n in sums), torch.zeros(()))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    packed = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    for n, rows in enumerate(dialogues):
        alone = [score_tokens(model, pack_tokens([row]), temperature=1.0).logprobs_N for row in rows]
        torch.testing.assert_close(torch.cat(alone), sums[n], atol=1e-6, rtol=0)
        (advantages[n] * torch.cat(alone).sum()).backward()
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, packed[name], atol=1e-6, rtol=1e-6)


def test_one_advantage_is_shared_by_all_rows_of_a_trajectory():
    trajectories, _ = cases()
    batches = pack_trajectories(trajectories, [0.5, -1.0, 2.0, 0.25], packing=Packing(max_tokens=90))
    counts = {
        float(value): count
        for batch in batches
        for value, count in zip(*batch.advantages_N.unique(return_counts=True), strict=True)
    }
    assert counts == {
        value: trajectory.num_response_tokens
        for value, trajectory in zip([0.5, -1.0, 2.0, 0.25], trajectories, strict=True)
    }
    assert all(batch.num_trajectories == len(set(batch.trajectory_N.tolist())) for batch in batches)
