"""Communication for the micro-batches of an update, with the gradients of separate exchanges."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp
from torch.distributed.fsdp._fully_shard._fsdp_collectives import foreach_reduce
from torch.distributed.tensor import DTensor

from agentrl.config.schema.run import ActorSection, ModelSection
from agentrl.training.model.decoder import decoder_layers
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, pack_trajectories
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.training_cases import alone, step_groups


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    group = Parallel(alone())
    yield group
    group.close()


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of gathered and reduced groups of weights."""
    counts: Counter[str] = Counter()
    gather = fsdp.FSDPParamGroup._to_unsharded

    def count_reduce(*arguments: object) -> object:
        counts["reduced"] += 1
        return foreach_reduce(*arguments)  # pyright: ignore[reportArgumentType]

    def count_gather(group: fsdp.FSDPParamGroup) -> None:
        counts["gathered"] += 1
        gather(group)

    monkeypatch.setattr(fsdp, "foreach_reduce", count_reduce)
    monkeypatch.setattr(fsdp.FSDPParamGroup, "_to_unsharded", count_gather)
    return counts


def rows() -> list[MicroBatch]:
    trajectories = [trajectory.ref for group in step_groups() for trajectory in group.trajectories]
    batches = pack_trajectories(trajectories, [1.0] * len(trajectories), packing=Packing(max_tokens=64))
    assert len(batches) > 2
    return batches


def sharded(policy: ModelSection, parallel: Parallel, dtype: torch.dtype) -> torch.nn.Module:
    opened = open_model(policy)
    shard_model(opened.model, opened.files, parallel, ActorSection(), dtype=dtype)
    return opened.model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_rank_gathers_and_reduces_once_per_update_with_the_same_gradients(
    policy: ModelSection, parallel: Parallel, exchanges: Counter[str], dtype: torch.dtype
):
    once, each = (sharded(policy, parallel, dtype) for _ in range(2))
    num_groups = len(decoder_layers(once)) + 1
    for batch in parallel.gradient_passes(once, rows()):
        score_tokens(once, batch.tokens, temperature=1.0).logprobs_N.sum().backward()
    assert exchanges == {"gathered": num_groups, "reduced": num_groups}
    for batch in rows():
        score_tokens(each, batch.tokens, temperature=1.0).logprobs_N.sum().backward()
    for (name, weight), other in zip(once.named_parameters(), each.parameters(), strict=True):
        assert isinstance(weight.grad, DTensor)
        assert isinstance(other.grad, DTensor)
        assert torch.equal(weight.grad.to_local(), other.grad.to_local()), name


def test_the_next_update_uses_the_new_weights(policy: ModelSection, parallel: Parallel):
    model, losses = sharded(policy, parallel, torch.float32), []
    for _ in range(2):
        for batch in parallel.gradient_passes(model, rows()):
            loss = score_tokens(model, batch.tokens, temperature=1.0).logprobs_N.sum()
            loss.backward()
            losses.append(loss.item())
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.5)
    first, second = losses[: len(losses) // 2], losses[len(losses) // 2 :]
    assert all(before != after for before, after in zip(first, second, strict=True))
    with torch.no_grad():
        logprobs_N = score_tokens(model, rows()[0].tokens, temperature=1.0).logprobs_N
    assert logprobs_N.sum().item() not in losses, "a pass without gradients uses the new weights too"
