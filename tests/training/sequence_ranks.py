"""Processes of `test_splits`: rows shared by groups of two and of four ranks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from agentrl.config.schema.run import ModelSection
from agentrl.training.model.decoder import decoder_layers, load_model, recompute_activations
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import empty_micro_batch, fill_up, pack_tokens, pack_trajectories
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from tests.training.training_cases import advantage_of, make_example, step_groups
from tests.training.two_ranks import context_at


@dataclass(frozen=True)
class SplitCase:
    """A group of ranks among the four processes."""

    name: str
    policy: str
    processes: Sequence[int]
    sequence_parallel_size: int
    port: int
    share_prefixes: bool = True
    max_tokens: int = 90
    activation_checkpointing: bool = False


def run_process(process: int, cases: Sequence[SplitCase], folder: str) -> None:
    """Take part in the cases, and write gradient and memory of each to `folder`."""
    torch.set_num_threads(1)
    for case in cases:
        if process not in case.processes:
            continue
        rank = case.processes.index(process)
        parallel = Parallel(
            context_at(case.port, rank, len(case.processes), sequence_parallel_size=case.sequence_parallel_size)
        )
        gradients = gradients_of(parallel, case)
        saved_bytes = bytes_saved_for_the_backward_pass(parallel, case.policy)
        torch.save((gradients, saved_bytes), Path(folder) / f"{case.name}.{rank}.pt")
        parallel.close()


def gradients_of(parallel: Parallel, case: SplitCase) -> dict[str, Tensor]:
    """Return the whole gradient of one update, computed as in the actor."""
    model = sharded_model(parallel, case.policy, activation_checkpointing=case.activation_checkpointing)
    shares = plan_update(step_groups(), step=1, num_ranks=parallel.num_shares, num_mini_batches=1)
    shard, refs = shares[parallel.rank // case.sequence_parallel_size]
    advantages = [advantage_of(item.group, item.member) for item in shard.items]
    packing = Packing(max_tokens=case.max_tokens, share_prefixes=case.share_prefixes)
    batches = pack_trajectories([trajectory.ref for trajectory in refs], advantages, packing=packing)
    [num_rows] = parallel.max([len(batches)])
    [num_scored] = parallel.sum([sum(len(batch.advantages_N) for batch in batches)])
    for batch in fill_up(batches, empty_micro_batch(), int(num_rows)):
        on_device = batch.to(parallel.device, parallel.sequence)
        logprobs_N = score_tokens(model, on_device.tokens, temperature=1.0).logprobs_N
        (-(logprobs_N * on_device.advantages_N).sum() * (parallel.world_size / num_scored)).backward()
    return {
        name: parameter.grad.full_tensor()
        for name, parameter in model.named_parameters()
        if isinstance(parameter.grad, DTensor)
    }


def bytes_saved_for_the_backward_pass(parallel: Parallel, policy: str) -> int:
    """Return the bytes that this rank saves in a forward pass over a long row, weights included."""
    model = sharded_model(parallel, policy)
    row = pack_tokens([make_example(random.Random(0), 250) for _ in range(4)])
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # kept alive, so that its address is not reused

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = score_tokens(model, row.to(parallel.device, parallel.sequence), temperature=1.0)
    scores.logprobs_N.sum().backward()
    return sum(kept.values())


def sharded_model(parallel: Parallel, policy: str, *, activation_checkpointing: bool = False) -> nn.Module:
    """Return the policy in float32 on all ranks."""
    model = load_model(ModelSection(path=policy))
    if activation_checkpointing:
        recompute_activations(model)
    parallel.shard(model, decoder_layers(model), dtype=torch.float32)
    return model
