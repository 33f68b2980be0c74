import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection
from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.model.decoder import load_model
from agentrl.training.model.flops import ModelShape
from agentrl.training.packing.families import Family, Packing, SequenceCost, balanced_bins, families_of
from agentrl.training.packing.packing import members_of, pack_tokens, pack_trajectories, plan_rows
from agentrl.training.packing.row_layout import row_layout
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.training_cases import FAMILIES, VOCABULARY, make_example, make_policy, make_trajectory


def family_of(draws: random.Random, prompt: int, responses: list[int], agree: int = 0) -> list[TokenisedExample]:
    """Return sequences of one prompt with `agree` further sampled tokens in common, and observations in the responses."""
    start = [draws.randrange(VOCABULARY) for _ in range(prompt + agree)]
    examples = []
    for length in responses:
        rest = make_example(draws, length)
        mask = [0] * prompt + [1] * agree + [1, *rest.response_mask[1:]]
        examples.append(TokenisedExample(token_ids=[*start, *rest.token_ids], response_mask=mask))
    return examples


def cases() -> dict[str, list[TokenisedExample]]:
    draws = random.Random(3)
    group = family_of(draws, 40, [9, 12, 12, 30, 6])
    return {
        "one group": group,
        "two groups and an unrelated sequence": [*group, make_example(draws, 33), *family_of(draws, 17, [20, 3, 21])],
        "sampled tokens in common": family_of(draws, 12, [9, 12, 20], agree=5),
        "a prefix of another": [group[3], dataclasses.replace(
            group[3], token_ids=group[3].token_ids[:50], response_mask=group[3].response_mask[:50]
        )],
        "all the same": [group[0], group[0], group[0]],
    }  # fmt: skip


def padded_logprobs(model: Any, examples: list[TokenisedExample]) -> Tensor:
    """Return the reference: a right-padded batch through transformers' own model."""
    longest = max(len(example.token_ids) for example in examples)
    ids = torch.tensor([e.token_ids + [0] * (longest - len(e.token_ids)) for e in examples])
    real = torch.tensor([[1] * len(e.token_ids) + [0] * (longest - len(e.token_ids)) for e in examples])
    logprobs = model(input_ids=ids, attention_mask=real).logits[:, :-1].log_softmax(-1)
    chosen = logprobs.gather(2, ids[:, 1:, None]).squeeze(2)
    scored = torch.tensor([e.response_mask[1:] + [0] * (longest - len(e.token_ids)) for e in examples]).bool()
    return chosen[scored]


@pytest.mark.parametrize("architecture", list(FAMILIES))
@pytest.mark.parametrize("case", list(cases()))
def test_shared_prefixes_match_a_padded_batch_with_gradients(architecture: str, case: str, tmp_path: Path):
    folder, examples = make_policy(tmp_path, FAMILIES[architecture]), cases()[case]
    model, plain = load_model(ModelSection(path=str(folder))), AutoModelForCausalLM.from_pretrained(folder)
    families = families_of(examples, max_tokens=10_000, share_prefixes=True)
    tokens = pack_tokens(examples, families)
    assert tokens.layout.prefixes or case == "all the same"
    assert len(tokens.token_ids_T) < sum(len(example.token_ids) - 1 for example in examples)
    scores = score_tokens(model, tokens, temperature=1.0)
    expected = padded_logprobs(plain, [examples[member] for member in members_of(families)])
    torch.testing.assert_close(scores.logprobs_N, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn(len(expected), generator=torch.Generator().manual_seed(0))
    (scores.logprobs_N * weights).mean().backward()
    (expected * weights).mean().backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        theirs = gradients[name].grad
        assert parameter.grad is not None
        assert theirs is not None
        assert (parameter.grad - theirs).norm() <= 1e-5 * theirs.norm(), name


def test_a_continuation_does_not_see_another(policy: ModelSection):
    model, [first, second, *_] = load_model(policy), cases()["one group"]
    changed = dataclasses.replace(first, token_ids=[*first.token_ids[:40], *first.token_ids[:39:-1]])
    results = []
    for examples in ([first, second], [changed, second]):
        tokens = pack_tokens(examples, [Family(members=(0, 1), num_shared=40)])
        results.append(score_tokens(model, tokens, temperature=1.0).logprobs_N)
    num_second = sum(second.response_mask)
    assert torch.equal(results[0][-num_second:], results[1][-num_second:])
    assert not torch.allclose(results[0][:-num_second], results[1][:-num_second])


def test_scored_tokens_follow_the_members_and_shared_ones_repeat():
    examples = [
        TokenisedExample(token_ids=[1, 2, 3, 4], response_mask=[0, 0, 1, 1]),
        TokenisedExample(token_ids=[9, 9, 9], response_mask=[0, 0, 1]),
        TokenisedExample(token_ids=[1, 2, 3, 5, 6], response_mask=[0, 0, 1, 1, 1]),
    ]
    families = [Family(members=(2, 0), num_shared=3), Family(members=(1,), num_shared=0)]
    tokens = pack_tokens(examples, families)
    assert tokens.token_ids_T.tolist() == [1, 2, 3, 5, 9, 9]
    assert tokens.position_ids_T.tolist() == [0, 1, 2, 3, 0, 1]
    assert tokens.targets_N.tolist() == [3, 5, 6, 3, 4, 9]
    assert tokens.scored_N.tolist() == [1, 2, 3, 1, 2, 5]
    assert tokens.layout.lengths == (3, 1, 2)


def test_sequences_of_one_prompt_form_a_family_and_a_short_system_text_does_not():
    draws = random.Random(0)
    system = [draws.randrange(VOCABULARY) for _ in range(20)]

    def sequence(prompt: list[int], rest: list[int]) -> TokenisedExample:
        mask = [0] * (20 + len(prompt)) + [1] * len(rest)
        return TokenisedExample(token_ids=[*system, *prompt, *rest], response_mask=mask)

    examples = [sequence([1, 2], [5, 6, 7]), sequence([1, 3], [5]), sequence([1, 2], [5, 7])]
    families = families_of(examples, max_tokens=1000, share_prefixes=True)
    assert families == [Family(members=(0, 2), num_shared=23), Family(members=(1,), num_shared=0)]
    assert all(family.num_shared == 0 for family in families_of(examples, max_tokens=1000, share_prefixes=False))


def test_demonstrations_of_different_prompts_share_a_long_context():
    draws = random.Random(0)
    tools, other_tools = ([draws.randrange(VOCABULARY) for _ in range(80)] for _ in range(2))

    def dialogue(context: list[int], question: list[int]) -> TokenisedExample:
        ids = [*context, *question, 5, 6, 7]
        return TokenisedExample(token_ids=ids, response_mask=[0] * (len(ids) - 3) + [1] * 3)

    examples = [dialogue(tools, [1, 2]), dialogue(other_tools, [1]), dialogue(tools, [3]), dialogue(tools[:40], [4, 4])]
    families = families_of(examples, max_tokens=1000, share_prefixes=True)
    assert families == [
        Family(members=(0, 2), num_shared=80),
        Family(members=(1,), num_shared=0),
        Family(members=(3,), num_shared=0),
    ]


def test_a_sequence_that_shares_less_than_half_of_a_context_stays_alone():
    context = list(range(300))
    examples = [
        TokenisedExample(token_ids=ids, response_mask=[0] * (len(ids) - 1) + [1])
        for ids in ([*context, 7, 1], [*context, 8, 1], [*context[:100], 9, 1])
    ]
    families = families_of(examples, max_tokens=1000, share_prefixes=True)
    assert sorted((family.members, family.num_shared) for family in families) == [((0, 1), 300), ((2,), 0)]


def test_a_family_above_the_limit_is_divided_and_each_part_has_the_prefix():
    examples = family_of(random.Random(0), 40, [20] * 7)
    families = families_of(examples, max_tokens=100, share_prefixes=True)
    assert sorted(member for family in families for member in family.members) == list(range(7))
    assert [(len(family.members), family.num_shared) for family in families] == [(3, 40), (3, 40), (1, 0)]
    rows = plan_rows(examples, Packing(max_tokens=100))
    assert all(len(pack_tokens(examples, row).token_ids_T) <= 100 for row in rows)


def test_every_sequence_is_in_exactly_one_row_and_no_row_overflows():
    for seed in range(50):
        draws = random.Random(seed)
        sizes = [[draws.randrange(2, 60) for _ in range(draws.randrange(1, 9))] for _ in range(draws.randrange(1, 8))]
        examples = [example for group in sizes for example in family_of(draws, draws.randrange(1, 50), group)]
        for share_prefixes in (False, True):
            rows = plan_rows(examples, Packing(max_tokens=120, share_prefixes=share_prefixes), min_rows=seed % 5)
            assert sorted(i for row in rows for i in members_of(row)) == list(range(len(examples)))
            for row in rows:
                assert len(pack_tokens(examples, row).token_ids_T) <= 120 or len(members_of(row)) == 1


def test_rows_are_balanced_by_cost_and_not_by_tokens():
    """A sequence of 400 tokens costs as much as ten of 100 if attention equals the rest at 100: 400 x 5 = 10 x 200."""
    draws = random.Random(0)
    examples = [make_example(draws, length) for length in (400, *[100] * 10)]
    cost = SequenceCost(quadratic_length=100)
    families = families_of(examples, max_tokens=2000, share_prefixes=False)
    bins = balanced_bins(families, examples, Packing(max_tokens=2000, cost=cost), min_bins=2)
    assert [len(members) for members in bins] == [1, 10]
    assert cost.of(families[0], [400]) == 400 + 1600


def test_trajectories_of_one_prompt_share_it_and_keep_their_advantages():
    draws = random.Random(0)
    prompt = [draws.randrange(VOCABULARY) for _ in range(8)]
    drawn = [make_trajectory(draws, index, length=24) for index in range(3)]
    trajectories = [dataclasses.replace(t, token_ids=[*prompt, *t.token_ids[8:]]) for t in drawn]
    [shared] = pack_trajectories(trajectories, [1.0, 2.0, 3.0], packing=Packing(max_tokens=1000))
    [apart] = pack_trajectories(trajectories, [1.0, 2.0, 3.0], packing=Packing(max_tokens=1000, share_prefixes=False))
    assert len(apart.tokens.token_ids_T) - len(shared.tokens.token_ids_T) == 2 * 8
    assert torch.equal(shared.advantages_N, apart.advantages_N)
    assert torch.equal(shared.tokens.targets_N, apart.tokens.targets_N)


def test_operations_match_the_closed_form_and_count_a_shared_prefix_once():
    shape = ModelShape(layer_weights=1000, head_weights=100, num_layers=3, heads_width=8)
    examples = family_of(random.Random(0), 40, [11, 11])  # 10 computed tokens after the prompt
    apart, shared = (
        pack_tokens(examples, families_of(examples, max_tokens=1000, share_prefixes=on)) for on in (False, True)
    )
    num_scored = sum(sum(example.response_mask) for example in examples)
    head = 6 * 100 * num_scored
    assert shape.flops(apart) == 6 * 1000 * 100 + head + 12 * 3 * 8 * (2 * 50**2 / 2)
    frozen = dataclasses.replace(shape, is_frozen=True)
    assert shape.flops(apart) - frozen.flops(apart) == (6 - 4) * (1000 * 100 + 100 * num_scored)
    assert shape.flops(shared) == 6 * 1000 * 60 + head + 12 * 3 * 8 * (40**2 / 2 + 2 * 10**2 / 2 + 20 * 40)
    assert shape.cost.quadratic_length == 1000 / (3 * 8)


def test_the_context_of_a_continuation_includes_its_prefix():
    layout = pack_tokens(cases()["one group"], [Family(members=(3, 1, 2, 0, 4), num_shared=40)]).layout
    assert layout.max_context == 40 + 29
    assert row_layout([5, 9]).max_context == 9


def test_prefixes_are_shared_if_a_kernel_supports_it():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert can_share_prefixes(gpu, torch.bfloat16)
    assert can_share_prefixes(cpu, torch.float32)
    assert not can_share_prefixes(gpu, torch.float32)
