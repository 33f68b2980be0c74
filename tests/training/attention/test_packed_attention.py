import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    RwkvConfig,
)

from agentrl.config.schema.run import ModelSection
from agentrl.errors import ConfigError
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.packing import pack_tokens
from agentrl.training.packing.row_layout import bucket_sequences
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.training_cases import FAMILIES, SIZES, VOCABULARY, make_example, make_policy

LENGTHS = [40, 40, 33, 32, 30, 17, 17, 5, 2]


def examples() -> list[TokenisedExample]:
    draws = random.Random(1)
    return [make_example(draws, length) for length in LENGTHS]


def separate_logprobs(model: Any, example: TokenisedExample) -> Tensor:
    """Return the reference: transformers' own attention, one unpacked sequence, log-softmax of all its logits."""
    ids = torch.tensor(example.token_ids)
    logprobs = model(ids.unsqueeze(0)).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return logprobs[torch.tensor(example.response_mask[1:], dtype=torch.bool)]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_packed_rows_equal_separate_sequences_with_gradients(family: str, tmp_path: Path):
    folder = make_policy(tmp_path, FAMILIES[family])
    packed, plain = load_model(ModelSection(path=str(folder))), AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    scores = score_tokens(packed, pack_tokens(examples()), temperature=1.0)
    expected = torch.cat([separate_logprobs(plain, example) for example in examples()])
    torch.testing.assert_close(scores.logprobs_N, expected, atol=1e-5, rtol=0)

    weights = torch.randn(len(expected), generator=generator)
    (scores.logprobs_N * weights).mean().backward()
    (expected * weights).mean().backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in packed.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-5, rtol=1e-4)


def test_a_sequence_does_not_see_its_neighbours(policy: ModelSection):
    model, [first, second, *_] = load_model(policy), examples()
    changed = TokenisedExample(token_ids=first.token_ids[::-1], response_mask=first.response_mask)
    before = score_tokens(model, pack_tokens([first, second]), temperature=1.0).logprobs_N
    after = score_tokens(model, pack_tokens([changed, second]), temperature=1.0).logprobs_N
    num_second = sum(second.response_mask)
    assert torch.equal(before[-num_second:], after[-num_second:])
    assert not torch.allclose(before[:-num_second], after[:-num_second])


def test_buckets_cover_the_row_in_order_with_little_padding():
    buckets = bucket_sequences(LENGTHS)
    assert [bucket.start for bucket in buckets] == [0, *[bucket.end for bucket in buckets[:-1]]]
    assert buckets[-1].end == sum(LENGTHS)
    for bucket in buckets:
        assert bucket.num_sequences * bucket.max_length <= 1.1 * (bucket.end - bucket.start)
    assert buckets[0].num_sequences >= 2


def test_equal_lengths_share_one_call_without_padding():
    [bucket] = bucket_sequences([7, 7, 7])
    assert (bucket.num_sequences, bucket.max_length, bucket.padded_index) == (3, 7, None)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2), "`linear_attention`"),
        (RwkvConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2), "a recurrent state"),
        (Lfm2Config(**SIZES, num_key_value_heads=2, layer_types=["conv", "full_attention"]), "`conv`"),
    ],
)
def test_layers_with_a_state_along_the_row_are_refused(config: Any, kind: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"has layers of {kind}, which see across the sequences of a packed row"):
        load_model(ModelSection(path=str(make_policy(tmp_path, config))))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_dependent_positions_are_exact_up_to_their_limit(kind: str, tmp_path: Path):
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    sizes: dict[str, Any] = SIZES | {"max_position_embeddings": 32}
    if kind == "longrope":
        sizes["max_position_embeddings"] = 256
        rope |= {"short_factor": [1.0] * 4, "long_factor": [9.0] * 4, "original_max_position_embeddings": 32}
    folder = make_policy(tmp_path, LlamaConfig(**sizes, rope_parameters=rope))
    packed, plain = load_model(ModelSection(path=str(folder))), AutoModelForCausalLM.from_pretrained(folder)
    short = [example for example in examples() if len(example.token_ids) <= 32]
    expected = torch.cat([separate_logprobs(plain, example) for example in short])
    scores = score_tokens(packed, pack_tokens(short), temperature=1.0)
    torch.testing.assert_close(scores.logprobs_N, expected, atol=1e-5, rtol=0)
