import random

import pytest
import torch
from training_cases import make_example

from agentrl.config.schema import ModelSection
from agentrl.training import scoring
from agentrl.training.batch import pack_tokens
from agentrl.training.model import load_model


def test_temperature_and_entropy_are_those_of_the_scaled_softmax(policy: ModelSection):
    model, example = load_model(policy), make_example(random.Random(0), 20)
    tokens = pack_tokens([example])
    scores = scoring.score_tokens(model, tokens, temperature=0.7)
    model.set_attn_implementation("eager")
    logits = model(torch.tensor([example.token_ids])).logits[0, tokens.scored_N] / 0.7
    expected = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(scores.logprobs_N, expected.log_prob(tokens.targets_N), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.entropy_N, expected.entropy(), atol=1e-5, rtol=0)
    assert not scores.entropy_N.requires_grad


def test_scoring_in_chunks_changes_neither_values_nor_gradients(policy: ModelSection, monkeypatch: pytest.MonkeyPatch):
    tokens = pack_tokens([make_example(random.Random(0), 40)])
    results = []
    for max_elements in (2**26, 200):  # 200 elements are chunks of four tokens
        monkeypatch.setattr(scoring, "_MAX_LOGITS_IN_FLOAT32", max_elements)
        model = load_model(policy)
        scores = scoring.score_tokens(model, tokens, temperature=1.0)
        scores.logprobs_N.square().sum().backward()
        results.append((scores.logprobs_N.detach(), scores.entropy_N, [p.grad for p in model.parameters()]))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked)
