"""The gradient of an update does not depend on how trajectories are divided, packed and scored."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, multiprocessing
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.config.schema.run import ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.model.decoder import load_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import pack_trajectories
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, open_store
from agentrl.training.scoring import chunked_logits
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from tests.training.sequence_ranks import SplitCase, bytes_saved_for_the_backward_pass, run_process
from tests.training.training_cases import VOCABULARY, advantage_of, alone, make_policy, step_groups

RELATIVE = 1e-5
"""Tolerance relative to the norm of each gradient: float32 sums in another order."""


@cache
def padded_gradients(folder: str) -> dict[str, Tensor]:
    """Return the reference: a right-padded batch through transformers' own model."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    groups = step_groups()
    trajectories = [trajectory.ref for group in groups for trajectory in group.trajectories]
    advantages = [advantage_of(g, m) for g, group in enumerate(groups) for m in range(len(group.trajectories))]
    longest = max(len(trajectory.token_ids) for trajectory in trajectories)

    def padded(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    ids = padded([trajectory.token_ids for trajectory in trajectories])
    mask = padded([trajectory.response_mask for trajectory in trajectories])
    real = padded([[1] * len(trajectory.token_ids) for trajectory in trajectories])
    logprobs = model(input_ids=ids, attention_mask=real).logits[:, :-1].log_softmax(-1)
    chosen = logprobs.gather(2, ids[:, 1:, None]).squeeze(2)
    (-(chosen * torch.tensor(advantages)[:, None] * mask[:, 1:]).sum() / mask[:, 1:].sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("max_tokens", [1, 90, 10_000])
@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("max_logits", [100, 2**24])
def test_every_split_has_the_gradient_of_a_padded_batch(
    policy: ModelSection,
    monkeypatch: pytest.MonkeyPatch,
    num_ranks: int,
    max_tokens: int,
    share_prefixes: bool,
    max_logits: int,
):
    """Ranks run one after another; the gradient of an update is the sum of theirs."""
    monkeypatch.setattr(chunked_logits, "_MAX_LOGITS_ON_CPU", max_logits)
    model = load_model(policy)
    packing = Packing(max_tokens=max_tokens, share_prefixes=share_prefixes)
    shares = plan_update(step_groups(), step=1, num_ranks=num_ranks, num_mini_batches=1)
    num_shared = 0
    num_scored = sum(trajectory.ref.num_response_tokens for _, refs in shares for trajectory in refs)
    for shard, refs in shares:
        advantages = [advantage_of(item.group, item.member) for item in shard.items]
        for batch in pack_trajectories([trajectory.ref for trajectory in refs], advantages, packing=packing):
            num_shared += len(batch.tokens.layout.prefixes)
            logprobs_N = score_tokens(model, batch.tokens, temperature=1.0).logprobs_N
            (-(logprobs_N * batch.advantages_N).sum() / num_scored).backward()
    assert (num_shared > 0) == (share_prefixes and max_tokens > 1)
    expected = padded_gradients(policy.path)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad - expected[name]).norm() <= RELATIVE * expected[name].norm(), name


def test_shared_prefixes_compute_fewer_tokens_for_the_same_update(policy: ModelSection):
    parallel, groups, metrics = Parallel(alone()), step_groups(), []
    try:
        for share_prefixes in (True, False):
            actor = Actor(RunConfig(model=policy, rollout=RolloutSection(max_response_tokens=64)), "actor")
            actor.setup(parallel)
            actor._packing = replace(actor._packing, share_prefixes=share_prefixes)
            [(shard, refs)] = plan_update(groups, step=1, num_ranks=1, num_mini_batches=1)
            metrics.append(actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs)))
            actor.close()
    finally:
        parallel.close()
    shared, apart = metrics
    assert apart["actor/computed_tokens"] - shared["actor/computed_tokens"] >= 3 * 4 * 12
    assert shared["actor/tokens"] == apart["actor/tokens"]
    assert shared["actor/grad_norm"] == pytest.approx(apart["actor/grad_norm"], rel=1e-5)
    assert shared["actor/loss"] == pytest.approx(apart["actor/loss"], abs=1e-6)


SPLITS = {
    "rows of their own on two ranks": ((0, 1), 1, {}),
    "rows of their own on four ranks": ((0, 1, 2, 3), 1, {"max_tokens": 10_000}),
    "a row on two ranks": ((0, 1), 2, {}),
    "few key heads": ((2, 3), 2, {"num_key_value_heads": 1}),
    "two rows on two ranks each": ((0, 1, 2, 3), 2, {}),
    "a row on four ranks": ((0, 1, 2, 3), 4, {}),
    "without shared prefixes": ((0, 1), 2, {"share_prefixes": False, "max_tokens": 10_000}),
    "a trajectory in each row": ((2, 3), 2, {"max_tokens": 1}),
    "activations computed again": ((0, 1), 2, {"activation_checkpointing": True}),
}
"""Processes, ranks per row, and further settings, by name."""


@dataclass
class SplitResults:
    policies: dict[str, str]
    gradients: dict[str, dict[str, Tensor]]
    """Whole gradients of the first rank, by split."""
    saved_bytes: dict[str, list[int]]
    """Bytes saved by each rank, by split."""


@pytest.fixture(scope="module")
def splits(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> SplitResults:
    """All splits on the same four processes over gloo."""
    folder = tmp_path_factory.mktemp("splits")
    config = Qwen3Config.from_pretrained(policy.path, num_key_value_heads=1)
    assert config.vocab_size == VOCABULARY
    few_key_heads = str(make_policy(tmp_path_factory.mktemp("few_key_heads"), config))
    policies = {
        name: few_key_heads if "num_key_value_heads" in other else policy.path for name, (*_, other) in SPLITS.items()
    }
    stores = [open_store("127.0.0.1") for _ in SPLITS]
    cases = [
        SplitCase(
            name=name,
            policy=policies[name],
            processes=processes,
            sequence_parallel_size=size,
            port=store.port,
            **{key: value for key, value in other.items() if key != "num_key_value_heads"},
        )
        for store, (name, (processes, size, other)) in zip(stores, SPLITS.items(), strict=True)
    ]
    # Fork from a process that has loaded everything.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["sequence_ranks"])
    multiprocessing.start_processes(run_process, args=(cases, str(folder)), nprocs=4, start_method="forkserver")  # pyright: ignore[reportPrivateImportUsage]
    results = {
        case.name: [torch.load(folder / f"{case.name}.{rank}.pt") for rank in range(len(case.processes))]
        for case in cases
    }
    return SplitResults(
        policies=policies,
        gradients={name: of_ranks[0][0] for name, of_ranks in results.items()},
        saved_bytes={name: [saved for _, saved in of_ranks] for name, of_ranks in results.items()},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)  # four new processes, on busy machines
@pytest.mark.parametrize("name", SPLITS)
def test_rows_on_several_ranks_have_the_gradient_of_a_padded_batch(splits: SplitResults, name: str):
    expected = padded_gradients(splits.policies[name])
    assert splits.gradients[name].keys() == expected.keys()
    for weight, gradient in splits.gradients[name].items():
        assert (gradient - expected[weight]).norm() <= RELATIVE * expected[weight].norm(), weight


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_rank_saves_only_its_part_of_a_row_for_the_backward_pass(splits: SplitResults, policy: ModelSection):
    parallel = Parallel(alone())
    try:
        whole = bytes_saved_for_the_backward_pass(parallel, policy.path)
    finally:
        parallel.close()
    for name, num_ranks in (("a row on two ranks", 2), ("a row on four ranks", 4)):
        for saved in splits.saved_bytes[name]:
            assert 0.9 / num_ranks < saved / whole < 1.2 / num_ranks, name
