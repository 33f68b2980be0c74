import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config

from agentrl.config.schema.run import ModelSection
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.packing import empty_tokens, pack_tokens
from agentrl.training.scoring import chunked_logits, token_logprobs
from tests.training.allocations import peak_allocated_bytes
from tests.training.training_cases import VOCABULARY, make_example, make_policy

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def test_logprobs_and_entropy_match_the_scaled_softmax(policy: ModelSection):
    model, example = load_model(policy), make_example(random.Random(0), 20)
    tokens = pack_tokens([example])
    scores = token_logprobs.score_tokens(model, tokens, temperature=0.7)
    model.set_attn_implementation("eager")
    logits = model(torch.tensor([example.token_ids])).logits[0, tokens.scored_N] / 0.7
    expected = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(scores.logprobs_N, expected.log_prob(tokens.targets_N), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.entropy_N, expected.entropy(), atol=1e-5, rtol=0)
    assert not scores.entropy_N.requires_grad


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_scoring_in_chunks_matches_the_log_softmax_with_gradients(
    policy: ModelSection, monkeypatch: pytest.MonkeyPatch, entropy_gradient: bool
):
    monkeypatch.setattr(chunked_logits, "_MAX_LOGITS_ON_CPU", 200)  # chunks of four tokens
    example = make_example(random.Random(0), 40)
    tokens, model = pack_tokens([example]), load_model(policy)
    scores = token_logprobs.score_tokens(model, tokens, temperature=0.7, entropy_gradient=entropy_gradient)
    plain = AutoModelForCausalLM.from_pretrained(policy.path)
    logits_NV = plain(torch.tensor([example.token_ids])).logits[0, tokens.scored_N] / 0.7
    expected = torch.distributions.Categorical(logits=logits_NV)
    results = ((scores.logprobs_N, scores.entropy_N), (expected.log_prob(tokens.targets_N), expected.entropy()))
    for logprobs_N, entropy_N in results:
        weights_N = torch.linspace(-1, 1, len(logprobs_N))
        loss = (weights_N * logprobs_N).mean()
        if entropy_gradient:
            loss = loss + (weights_N.flip(0) * entropy_N).mean()
        loss.backward()
    torch.testing.assert_close(scores.logprobs_N, expected.log_prob(tokens.targets_N), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy_N, expected.entropy(), atol=1e-5, rtol=1e-5)
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert_same_direction(parameter.grad, gradients[name].grad)


def test_gradients_of_tokens_that_share_a_state_are_added_in_one_order():
    """Answers to one prompt share the state of its last token; sums in the order of threads would differ between runs."""
    draws = torch.Generator().manual_seed(0)
    scored_N = torch.randint(0, 20, (20_000,), generator=draws)
    tokens = replace(pack_tokens([make_example(random.Random(0), 24)]), scored_N=scored_N)
    states = torch.randn(1, 24, 64, generator=draws).requires_grad_()
    weights = torch.randn(len(scored_N), 64, generator=draws)

    def decoder(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=states)

    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    gradients = [
        torch.autograd.grad((token_logprobs.scored_states(cast(Any, decoder), tokens) * weights).sum(), states)[0]
        for _ in range(10)
    ]
    torch.set_num_threads(num_threads)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_logits_of_all_tokens_never_exist_at_once(monkeypatch: pytest.MonkeyPatch):
    """Use the tokens and chunks of `benchmarks.training.vocabulary`, with a hundredth of the chunked_logits."""
    size = 1500
    monkeypatch.setattr(chunked_logits, "_MAX_LOGITS_ON_CPU", 223 * size)
    hidden_NW = torch.randn(1024, 8, requires_grad=True)
    head_VW, targets_N = torch.randn(size, 8, requires_grad=True), torch.randint(size, (1024,))

    def chunked() -> None:
        logprobs_N, _ = chunked_logits.vocabulary_scores(
            hidden_NW, head_VW, targets_N, temperature=1.0, entropy_gradient=False
        )
        logprobs_N.mean().backward()

    def plain() -> None:
        (hidden_NW @ head_VW.T).log_softmax(-1).gather(1, targets_N[:, None]).mean().backward()

    chunked()  # allocates the gradients
    assert peak_allocated_bytes(chunked) < peak_allocated_bytes(plain) / 4


@pytest.mark.parametrize("config", [Gemma2Config, CohereConfig])
def test_heads_that_cap_or_scale_logits_are_scored_by_the_model(config: Any, tmp_path: Path):
    settings = config(
        **SIZES,
        pad_token_id=0,
        head_dim=8,
        attention_dropout=0.0,
        **({"final_logit_softcapping": 2.0, "attn_logit_softcapping": None} if config is Gemma2Config else {}),
    )
    folder, example = make_policy(tmp_path, settings), make_example(random.Random(0), 40)
    model, plain = load_model(ModelSection(path=str(folder))), AutoModelForCausalLM.from_pretrained(folder)
    tokens = pack_tokens([example])
    scores = token_logprobs.score_tokens(model, tokens, temperature=0.7)
    logits_NV = plain(torch.tensor([example.token_ids])).logits[0, tokens.scored_N] / 0.7
    expected = torch.distributions.Categorical(logits=logits_NV)
    torch.testing.assert_close(scores.logprobs_N, expected.log_prob(tokens.targets_N), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy_N, expected.entropy(), atol=1e-5, rtol=1e-5)
    scores.logprobs_N.mean().backward()
    expected.log_prob(tokens.targets_N).mean().backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert_same_direction(parameter.grad, gradients[name].grad)


def test_a_row_without_scored_tokens_gives_zero_gradients(policy: ModelSection):
    model = load_model(policy)
    scores = token_logprobs.score_tokens(model, empty_tokens(), temperature=1.0)
    scores.logprobs_N.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def assert_same_direction(ours: Tensor | None, theirs: Tensor | None) -> None:
    assert ours is not None
    assert theirs is not None
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
