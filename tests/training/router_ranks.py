"""Processes of `test_router_balance`, each with its own rows or both sharing a row."""

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.config.schema.run import ModelSection
from agentrl.training.model.decoder import decoder_layers, load_model
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import empty_tokens, fill_up, pack_examples
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.sequence_ranks import sharded_model
from tests.training.training_cases import step_groups, with_experts
from tests.training.two_ranks import context_at


def rows_of(share: int, num_shares: int) -> list[PackedTokens]:
    """Return the packed rows of a share; of two shares, the second has fewer."""
    trajectories = [with_experts(trajectory.ref) for group in step_groups() for trajectory in group.trajectories]
    chosen = trajectories if num_shares == 1 else [trajectories[:10], trajectories[10:]][share]
    return pack_examples(chosen, Packing(max_tokens=150))


def replayed_logprobs(parallel: Parallel, policy: str, row: PackedTokens) -> Tensor:
    """Return the log-probabilities of a row with its recorded experts replayed."""
    model = load_model(ModelSection(path=policy))
    replay_routing(model, decoder_layers(model), "here")
    parallel.shard(model, decoder_layers(model), dtype=torch.float32)
    with torch.no_grad():
        return score_tokens(model, row.to(parallel.device, parallel.sequence), temperature=1.0).logprobs_N


def run_process(rank: int, port: int, policy: str, sequence_parallel_size: int, folder: str) -> None:
    """Write the auxiliary loss of all rows, its whole gradient and replayed log-probabilities to `folder`."""
    torch.set_num_threads(1)
    parallel = Parallel(context_at(port, rank, 2, sequence_parallel_size=sequence_parallel_size))
    model = sharded_model(parallel, policy, activation_checkpointing=True)
    batches = rows_of(rank // sequence_parallel_size, parallel.num_shares)
    num_rows, [num_tokens] = parallel.max([len(batches)]), parallel.sum([sum(row.num_tokens for row in batches)])
    total = torch.zeros(())
    for row in fill_up(batches, empty_tokens(), int(num_rows[0])):
        on_device = row.to(parallel.device, parallel.sequence)
        scores = score_tokens(model, on_device, temperature=1.0, router_loss=True)
        assert scores.router_loss is not None
        # FSDP gathers a layer's weights for the gradient of its output, so every loss must depend on it.
        loss = (scores.router_loss - scores.logprobs_N.sum()) / num_tokens
        (loss * parallel.world_size).backward()
        total += loss.detach()
    [loss_of_all] = parallel.sum([total.item()])
    gradients: dict[str, Tensor] = {
        name: weight.grad.full_tensor() for name, weight in model.named_parameters() if isinstance(weight.grad, DTensor)
    }
    torch.save((loss_of_all, gradients, replayed_logprobs(parallel, policy, batches[0])), Path(folder) / f"{rank}.pt")
    parallel.close()
