"""Reference: the softmax of the logits, truncated by hand."""

import math

import numpy as np
import torch

from agentrl.engine.embedded.sampling import sample
from agentrl.types import SamplingParams

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.5, -torch.inf, 0.0])


def draw(params: SamplingParams, num_draws: int = 10_000) -> tuple[torch.Tensor, dict[int, float]]:
    """Return the share of each token over evenly spaced uniform numbers, and the log-probability of each drawn one."""
    uniforms = [(i + 0.5) / num_draws for i in range(num_draws)]
    ids, logprobs = sample(LOGITS.expand(num_draws, -1), [params] * num_draws, uniforms)
    return torch.bincount(torch.tensor(ids), minlength=len(LOGITS)) / num_draws, dict(zip(ids, logprobs, strict=True))


def assert_drawn_from(probs: torch.Tensor, params: SamplingParams) -> None:
    shares, logprobs = draw(params)
    torch.testing.assert_close(shares, probs, atol=1.1e-4, rtol=0)
    for token_id, logprob in logprobs.items():
        assert math.isclose(logprob, probs[token_id].log().item(), abs_tol=1e-6)


def test_the_whole_distribution_is_the_softmax() -> None:
    assert_drawn_from(LOGITS.softmax(-1), SamplingParams(max_tokens=1))


def test_temperature_divides_the_logits_and_the_logprobs_say_so() -> None:
    assert_drawn_from((LOGITS / 0.7).softmax(-1), SamplingParams(max_tokens=1, temperature=0.7))


def test_top_k_keeps_the_k_likeliest() -> None:
    kept = LOGITS.where(torch.tensor([True, False, False, True, False, False]), -torch.inf)
    assert_drawn_from(kept.softmax(-1), SamplingParams(max_tokens=1, top_k=2))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    probs = LOGITS.softmax(-1)
    assert probs[0] + probs[3] < 0.85 < probs[0] + probs[3] + probs[2]
    kept = LOGITS.where(torch.tensor([True, False, True, True, False, False]), -torch.inf)
    assert_drawn_from(kept.softmax(-1), SamplingParams(max_tokens=1, top_p=0.85))


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Of the three likeliest the first has 0.55: enough for 0.5 of them, though it is less than 0.5 of everything.
    logits = torch.tensor([1.0, 0.0, -0.5, -0.6, -0.7, -0.8])
    probs = logits.softmax(-1)
    assert probs[0] < 0.5 < probs[0] / probs[:3].sum()
    uniforms = [0.0, 0.5, 0.999]
    ids, logprobs = sample(logits.expand(3, -1), [SamplingParams(max_tokens=1, top_k=3, top_p=0.5)] * 3, uniforms)
    assert (ids, logprobs) == ([0, 0, 0], [0.0, 0.0, 0.0])


def test_a_tiny_top_p_still_leaves_the_likeliest_token() -> None:
    assert sample(LOGITS[None], [SamplingParams(max_tokens=1, top_p=1e-9)], [0.99]) == ([0], [0.0])


def test_top_k_cuts_ties_to_exactly_k() -> None:
    ids, _ = sample(torch.zeros(9, 4), [SamplingParams(max_tokens=1, top_k=3)] * 9, [i / 9 for i in range(9)])
    assert len(set(ids)) == 3


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    ends = [0.0, 1 - 2**-24]
    assert sample(logits.expand(2, -1), [SamplingParams(max_tokens=1)] * 2, ends)[0] == [1, 1]


def test_greedy_takes_the_likeliest_and_reports_its_untempered_logprob() -> None:
    ids, logprobs = sample(LOGITS[None], [SamplingParams(max_tokens=1, temperature=0.0, top_k=1, top_p=0.1)], [0.9])
    assert ids == [0]
    assert math.isclose(logprobs[0], LOGITS.log_softmax(-1)[0].item(), abs_tol=1e-6)


def test_a_row_is_not_changed_by_the_parameters_of_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    params = [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, temperature=0.5, top_k=5),
        SamplingParams(max_tokens=1, top_p=0.6),
    ]
    uniforms = [0.3, 0.0, 0.7, 0.9]
    together = sample(logits, params, uniforms)
    alone = [sample(logits[i : i + 1], [params[i]], [uniforms[i]]) for i in range(4)]
    assert together[0] == [ids[0] for ids, _ in alone]
    torch.testing.assert_close(together[1], [logprobs[0] for _, logprobs in alone], atol=1e-6, rtol=0)


def test_a_row_with_nan_or_infinity_gets_no_finite_logprob() -> None:
    logits = torch.stack([LOGITS, LOGITS, LOGITS])
    logits[0, 2] = torch.nan
    logits[1, 2] = torch.inf
    _, logprobs = sample(logits, [SamplingParams(max_tokens=1)] * 3, [0.5, 0.5, 0.5])
    assert [math.isfinite(logprob) for logprob in logprobs] == [False, False, True]


def test_a_large_vocabulary_is_inverted_as_by_one_cumulative_sum() -> None:
    torch.manual_seed(0)
    logits = 4 * torch.randn(64, 5_003)
    logits[:, torch.rand(5_003) < 0.7] = -torch.inf
    probs = logits.softmax(-1).double().numpy()
    uniforms = [i / 64 for i in range(63)] + [1 - 2**-24]
    expected = [
        int(np.searchsorted(row.cumsum(), uniform * row.sum(), side="right"))
        for row, uniform in zip(probs, uniforms, strict=True)
    ]
    ids, logprobs = sample(logits, [SamplingParams(max_tokens=1)] * 64, uniforms)
    assert ids == expected
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist())
