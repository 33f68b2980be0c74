"""One update on a GPU, and its engines: utilisation, shared prefixes, the memory of a large vocabulary, weight sync, sleep.

    python -m benchmarks.gpu.update [--size 1.5b] [--tokens 8192] [--trajectories 8] [--rounds 3]
    python -m benchmarks.gpu.update --tiny    # the same code in seconds, also where there is no GPU

Needs only torch and transformers. The model is random, built from its configuration alone, sharded with FSDP2, and computes in
bfloat16 (`--tiny`: float32 on a CPU). Each section runs one round that is not counted, and prints medians of the others.

- update: packed rows of whole trajectories through the variable-length kernel, and AdamW on float32 weights. MFU is of the
  operations that one forward and one backward pass need, over those of a large matrix product in the same time.
- shared prefix: groups of 16 with prompts of four times the length of the responses, the prompt once per group or in each
  trajectory. Gradients are compared by their norm.
- vocabulary: log-probabilities and loss in chunks, beside all logits at once.
- weight sync: by CUDA IPC into an engine of another process, from the call of the actor until the last weight is there, beside
  a copy of as many bytes on the device. The first sync is checked by checksums. Where there is no GPU, the same calls by
  broadcast over gloo.
- sleep: what the embedded engine holds awake, asleep with its weights on the host, and asleep without weights; that it then
  samples as before. Where there is no GPU, the same calls, which free nothing that is measured.
"""

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.training.model.decoder import shape_of
from agentrl.training.model.flops import measured_peak_flops
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, pack_trajectories
from agentrl.training.scoring.chunked_logits import vocabulary_scores
from agentrl.training.update.optimiser import apply_gradients, build_adamw
from agentrl.types import Trajectory
from benchmarks.gpu.bench import SIZES, Bench, open_bench
from benchmarks.gpu.engines import measure_sleep, measure_sync
from benchmarks.training.vocabulary import plain_scores
from benchmarks.training.workload import make_groups


def recorded(prompts: list[int], responses: list[list[int]]) -> list[Trajectory]:
    """Return trajectories of these lengths."""
    groups = make_groups(random.Random(0), prompts=prompts, responses=responses)
    return [trajectory.ref for group in groups for trajectory in group.trajectories]


def rows_of(trajectories: list[Trajectory], *, max_tokens: int, share_prefixes: bool) -> list[MicroBatch]:
    """Pack trajectories; every other one has a negative advantage."""
    advantages = [float(index % 2) - 0.4 for index in range(len(trajectories))]
    packing = Packing(max_tokens=max_tokens, share_prefixes=share_prefixes)
    return pack_trajectories(trajectories, advantages, packing=packing)


def measure_update(bench: Bench, *, tokens: int, trajectories: int, rounds: int) -> None:
    """Print how well the device is used by whole updates."""
    rows = rows_of(
        recorded([tokens // 8] * trajectories, [[tokens - tokens // 8]] * trajectories),
        max_tokens=tokens,
        share_prefixes=False,
    )
    optimiser = build_adamw(bench.model, betas=(0.9, 0.999), weight_decay=0.01)

    def update() -> None:
        bench.gradient_of(rows)
        apply_gradients(bench.model, optimiser, learning_rate=1e-6, max_grad_norm=1.0, step=1)

    update_s, peak_gib = bench.seconds(update, rounds)
    shape, peak = shape_of(bench.model), measured_peak_flops(bench.parallel.device, bench.dtype)
    flops = sum(shape.flops(row.tokens) for row in rows)
    computed = sum(len(row.tokens.token_ids_T) for row in rows)
    rate, mfu = computed / update_s, flops / update_s / peak
    print(f"update: {computed} tokens in {update_s:.3f} s, {rate:.0f} tokens/s, MFU {mfu:.1%} of "
          f"{peak / 1e12:.3g} TFLOP/s (aim on an H100 at 1.5b: 45 %), at most {peak_gib:.1f} GiB", flush=True)  # fmt: skip


def measure_prefix_sharing(bench: Bench, *, response: int, rounds: int) -> None:
    """Print what it saves to compute the prompt of a group once."""
    trajectories = recorded([4 * response] * 2, [[response] * 16] * 2)
    norms_by_sharing: dict[bool, tuple[float, float]] = {}
    for shared in (False, True):
        rows = rows_of(trajectories, max_tokens=20 * response, share_prefixes=shared)
        norms: list[float] = []

        def gradient(rows: list[MicroBatch] = rows, norms: list[float] = norms) -> None:
            bench.gradient_of(rows)
            norms.append(_grad_norm(bench.model))

        norms_by_sharing[shared] = (bench.seconds(gradient, rounds)[0], norms[-1])
    (apart_s, apart_norm), (shared_s, shared_norm) = norms_by_sharing[False], norms_by_sharing[True]
    print(f"shared prefix: {shared_s:.3f} s, apart {apart_s:.3f} s, x {apart_s / shared_s:.2f}; norms of the gradient "
          f"{shared_norm:.5g} and {apart_norm:.5g}", flush=True)  # fmt: skip


def measure_vocabulary(bench: Bench, *, tokens: int, rounds: int) -> None:
    """Print time and memory behind the decoder, in chunks and with all logits at once."""
    device = bench.parallel.device
    head_VW = torch.randn(bench.size.vocabulary, bench.size.width, device=device, dtype=bench.dtype).requires_grad_()
    hidden_NW = torch.randn(tokens, bench.size.width, device=device, dtype=bench.dtype, requires_grad=True)
    targets_N = torch.randint(bench.size.vocabulary, (tokens,), device=device)

    def chunked() -> Tensor:
        return vocabulary_scores(hidden_NW, head_VW, targets_N, temperature=1.0, entropy_gradient=False)[0]

    def plain() -> Tensor:
        return plain_scores(hidden_NW, head_VW, targets_N)[0]

    def with_gradient(score: Callable[[], Tensor]) -> None:
        hidden_NW.grad = head_VW.grad = None
        (-score().float().mean()).backward()

    (chunked_s, chunked_gib), (plain_s, plain_gib) = (
        bench.seconds(lambda score=score: with_gradient(score), rounds) for score in (chunked, plain)
    )
    print(f"vocabulary of {bench.size.vocabulary}, {tokens} tokens: {1e3 * chunked_s:.1f} ms in chunks, {1e3 * plain_s:.1f} ms "
          f"plain; at most {chunked_gib:.1f} and {plain_gib:.1f} GiB, the model included", flush=True)  # fmt: skip


def _grad_norm(model: nn.Module) -> float:
    norm: Any = nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
    model.zero_grad()
    return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print, one section after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("0.5b", "1.5b"), default="1.5b")
    parser.add_argument("--tokens", type=int, default=8192, help="of each trajectory, and of each row")
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a small model and short trajectories")
    given = parser.parse_args(words)
    if not given.tiny and not torch.cuda.is_available():
        parser.error("there is no CUDA device; `--tiny` runs the same code on the CPU")
    tokens, size = (128, "tiny") if given.tiny else (given.tokens, given.size)
    with tempfile.TemporaryDirectory() as folder:
        bench = open_bench(SIZES[size], folder)
        try:
            device = bench.parallel.device
            name = torch.cuda.get_device_name(device) if bench.on_gpu else "CPU"
            print(f"{name}, torch {torch.__version__}, {size}, {bench.dtype}", flush=True)
            measure_update(bench, tokens=tokens, trajectories=given.trajectories, rounds=given.rounds)
            measure_prefix_sharing(bench, response=tokens // 16, rounds=given.rounds)
            measure_vocabulary(bench, tokens=tokens, rounds=given.rounds)
            measure_sync(bench, rounds=given.rounds)
            measure_sleep(bench, tokens=tokens // 4)
        finally:
            bench.parallel.close()


if __name__ == "__main__":
    main()
