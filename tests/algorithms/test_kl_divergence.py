import pytest
import torch

from agentrl.algorithms.kl_divergence import KL_ESTIMATORS, k2, k3

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
OTHER = torch.tensor([0.45, 0.25, 0.3], dtype=torch.float64)
EXACT = (POLICY * (POLICY / OTHER).log()).sum().item()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: str):
    estimates = KL_ESTIMATORS[estimator](POLICY.log(), OTHER.log())
    assert (POLICY * estimates).sum().item() == pytest.approx(EXACT, rel=1e-12)


def test_k3_is_never_negative_and_k2_is_close_for_close_policies():
    assert (k3(POLICY.log(), OTHER.log()) >= 0).all()
    assert (POLICY * k2(POLICY.log(), OTHER.log())).sum().item() == pytest.approx(EXACT, rel=0.1)


def test_the_expected_gradient_of_k2_is_that_of_the_divergence():
    logits = POLICY.log().requires_grad_(True)
    exact = (logits.softmax(0) * (logits.log_softmax(0) - OTHER.log())).sum()
    (expected,) = torch.autograd.grad(exact, logits)
    estimated = (POLICY * k2(logits.log_softmax(0), OTHER.log())).sum()
    (gradient,) = torch.autograd.grad(estimated, logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("far", [-95.0, 95.0])
def test_a_token_far_from_the_other_policy_has_a_finite_estimate_and_gradient(estimator: str, far: float):
    logprobs = torch.tensor([far], requires_grad=True)
    estimate = KL_ESTIMATORS[estimator](logprobs, torch.zeros(1))
    estimate.sum().backward()
    assert logprobs.grad is not None
    assert estimate.isfinite().all()
    assert logprobs.grad.isfinite().all()
