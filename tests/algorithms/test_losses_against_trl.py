"""Loss values and gradients of an update compared with TRL's code."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from random_batches import SIZES, RandomBatch, random_batch
from torch import Tensor
from trl.trainer.utils import entropy_from_logits, selective_log_softmax
from trl_reference import trl_loss

from agentrl.config.schema.algorithm import AlgorithmSection, RolloutCorrectionSection
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.scoring.chunked_logits import vocabulary_scores
from agentrl.training.scoring.token_logprobs import TokenScores
from agentrl.training.update.objective import Objective
from agentrl.training.update.tally import TokenTally

VERL = json.loads(Path(__file__).with_name("verl_values.json").read_text())

# Importing TRL's trainer takes longer than the tests.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("size", SIZES)]


class Packed:
    """The fields of a micro-batch that the objective reads."""

    def __init__(self, batch: RandomBatch) -> None:
        sampled = batch.mask_BT
        self.trajectory_N = batch.trajectory_N
        self.advantages_N = batch.advantages_B[self.trajectory_N]
        self.rollout_logprobs_N = batch.rollout_BT[sampled]
        self.reference_logprobs_N = batch.ref_BT[sampled]


def our_loss(batch: RandomBatch, scores: TokenScores, **algorithm: Any) -> Tensor:
    """Return our loss of a packed batch."""
    section = AlgorithmSection(**algorithm)
    num_tokens = len(batch.trajectory_N)
    summed = Objective(section, max_response_tokens=batch.mask_BT.shape[1]).loss(
        cast(MicroBatch, Packed(batch)),
        scores,
        old_logprobs_N=batch.old_BT[batch.mask_BT],
        mean_length=num_tokens / len(batch.mask_BT),
        kl_coefficient=section.kl_coefficient,
        tally=TokenTally(),
    )
    return summed / num_tokens


def compare(size: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    batch = random_batch(size)
    logprobs = batch.logprobs_BT.requires_grad_(True)
    sampled = logprobs[batch.mask_BT]
    loss = our_loss(batch, TokenScores(logprobs_N=sampled, entropy_N=torch.zeros_like(sampled)), **ours)
    expected = trl_loss(
        logprobs, batch.old_BT, batch.advantages_B, batch.mask_BT, ref_logprobs_BT=batch.ref_BT, **theirs
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradient, expected_gradient = (torch.autograd.grad(value, logprobs)[0] for value in (loss, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"aggregation": "token_mean"}, {"loss_type": "bnpo"}),
        ({"aggregation": "trajectory_mean"}, {"loss_type": "grpo"}),
        ({"aggregation": "fixed_length"}, {"loss_type": "dr_grpo"}),
        ({"clip_ratio_dual": 1.5}, {"loss_type": "bnpo", "delta": 1.5}),
        (
            {
                "policy_loss": "gspo",
                "clip_ratio_low": 0.05,
                "clip_ratio_high": 0.05,
                "aggregation": "trajectory_mean",
            },
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.05},
        ),
        (
            {"policy_loss": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 0.3},
            {"loss_type": "cispo", "epsilon_high": 1.3},
        ),
    ],
    ids=["token_mean", "trajectory_mean", "fixed_length", "dual", "gspo", "cispo"],
)
def test_loss_and_gradient_match_trl(size: str, ours: dict[str, Any], theirs: dict[str, Any]):
    compare(size, ours, theirs)


@pytest.mark.parametrize(("aggregation", "loss_type"), [("token_mean", "bnpo"), ("trajectory_mean", "grpo")])
def test_kl_in_the_loss_matches_trl(size: str, aggregation: str, loss_type: str):
    compare(size, {"aggregation": aggregation, "kl_coefficient": 0.3}, {"loss_type": loss_type, "beta": 0.3})


@pytest.mark.parametrize(("method", "min_ratio"), [("truncate", 0.5), ("mask", 0.8)])
@pytest.mark.parametrize(("level", "theirs"), [("token", "token"), ("trajectory", "sequence")])
def test_the_loss_with_verls_importance_weights_matches_trl(
    size: str, level: Any, theirs: str, method: Any, min_ratio: float
):
    mask = random_batch(size).mask_BT
    weights = torch.zeros(mask.shape, dtype=torch.float64)
    weights[mask] = torch.tensor(VERL[size][f"{theirs}_{method}"], dtype=torch.float64)
    correction = RolloutCorrectionSection(method=method, level=level, min_ratio=min_ratio, max_ratio=1.2)
    ours = {"rollout_correction": correction, "kl_coefficient": 0.3}
    compare(size, ours, {"weights_BT": weights, "beta": 0.3})


def test_log_probabilities_entropy_and_entropy_bonus_match_trl(size: str):
    batch = random_batch(size)
    draws = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(*batch.mask_BT.shape, 50, generator=draws)
    targets = torch.randint(50, batch.mask_BT.shape, generator=draws)
    logits.requires_grad_(True)
    logprobs_N, entropy_N = vocabulary_scores(
        logits[batch.mask_BT], torch.eye(50), targets[batch.mask_BT], temperature=1.0, entropy_gradient=True
    )
    logprobs, entropy = selective_log_softmax(logits, targets), entropy_from_logits(logits)
    torch.testing.assert_close(logprobs_N, logprobs[batch.mask_BT])
    torch.testing.assert_close(entropy_N, entropy[batch.mask_BT])
    batch.old_BT.copy_(logprobs.detach() + 0.1 * batch.old_BT)
    loss = our_loss(batch, TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N), entropy_coefficient=0.1)
    expected = trl_loss(logprobs, batch.old_BT, batch.advantages_B, batch.mask_BT, entropy_BT=entropy, entropy_coef=0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    gradient, expected_gradient = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)
