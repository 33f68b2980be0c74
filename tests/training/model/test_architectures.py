"""Every architecture is trained as transformers computes it, or refused by name.

Reference: transformers' eager attention over one sequence after another.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection
from agentrl.errors import ConfigError
from agentrl.models.attention_support import TESTED
from agentrl.training.model.decoder import load_model
from agentrl.training.model.folder_trial import try_model
from agentrl.training.packing.families import families_of
from agentrl.training.packing.packing import members_of, pack_tokens
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.architecture_cases import CASES, config_of, tiny_config
from tests.training.training_cases import VOCABULARY, make_example, make_policy


def examples() -> list[TokenisedExample]:
    """Return two sequences with a common prefix, a prefix of the first, and an unrelated one."""
    draws = random.Random(2)
    first, second, unrelated = (make_example(draws, length) for length in (30, 23, 17))
    second.token_ids[:11] = first.token_ids[:11]
    second.response_mask[:10], second.response_mask[10] = [0] * 10, 1
    beginning = TokenisedExample(token_ids=first.token_ids[:14], response_mask=first.response_mask[:14])
    return [first, second, unrelated, beginning]


def separate_logprobs(model: Any, example: TokenisedExample) -> Tensor:
    ids = torch.tensor(example.token_ids)
    logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1]
    logprobs = logits.float().log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return logprobs[torch.tensor(example.response_mask[1:], dtype=torch.bool)]


def weighted_gradients(model: Any, logprobs: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    weights = torch.linspace(-1, 1, len(logprobs))
    (weights * logprobs).mean().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("case", CASES)
def test_packed_and_shared_rows_equal_single_sequences(case: str, tmp_path: Path):
    folder = make_policy(tmp_path, tiny_config(case))
    packed = load_model(ModelSection(path=str(folder)))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    members = members_of(families_of(examples(), max_tokens=10_000, share_prefixes=True))
    ordered = [examples()[member] for member in members]
    expected = torch.cat([separate_logprobs(plain, example) for example in ordered])
    gradients = weighted_gradients(plain, expected)
    families = families_of(ordered, max_tokens=10_000, share_prefixes=True)
    assert members_of(families) == sorted(members)
    assert any(family.num_shared for family in families)
    for row in (pack_tokens(ordered), pack_tokens(ordered, families)):
        logprobs = score_tokens(packed, row, temperature=1.0).logprobs_N
        torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=1e-5)
        ours = weighted_gradients(packed, logprobs)
        for name, theirs in gradients.items():
            assert (ours[name] - theirs).norm() <= 1e-4 * theirs.norm() + 1e-7, name


def test_every_architecture_without_a_trial_is_tested():
    assert {kind for kind, _ in CASES.values()} == TESTED


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("bloom", {"n_layer": 2, "n_head": 4}, "log-probabilities in a packed row differ by"),
        ("codegen", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, "in a packed row differ by"),
        ("stablelm", {"num_hidden_layers": 2, "num_attention_heads": 4}, "does not pass arguments on"),
        (
            "nemotron",
            {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64},
            "does not pass arguments on",
        ),
        ("gptj", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}, "takes no other attention than its own"),
    ],
)
def test_an_architecture_that_packing_would_break_is_refused_by_name(
    kind: str, settings: dict[str, Any], why: str, tmp_path: Path
):
    config = config_of(kind, vocab_size=VOCABULARY, hidden_size=64, bos_token_id=1, eos_token_id=1, **settings)
    with pytest.raises(ConfigError, match=rf"model\.path.*{why}") as refusal:
        try_model(str(make_policy(tmp_path, config)), key="model.path")
    assert kind in str(refusal.value) or "its architecture" in str(refusal.value)


def test_an_untested_architecture_that_passes_the_trial_is_trained(tmp_path: Path):
    config = config_of(
        "opt",
        vocab_size=VOCABULARY,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        init_std=0.2,
    )
    assert config.model_type not in TESTED
    folder = make_policy(tmp_path, config)
    try_model(str(folder), key="model.path")
    packed, plain = load_model(ModelSection(path=str(folder))), AutoModelForCausalLM.from_pretrained(folder)
    expected = torch.cat([separate_logprobs(plain, example) for example in examples()])
    logprobs = score_tokens(packed, pack_tokens(examples()), temperature=1.0).logprobs_N
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=1e-5)
