"""One update on a GPU: utilisation, shared prefixes, and the memory of a large vocabulary.

    python -m benchmarks.training.gpu [--size 1.5b] [--tokens 8192] [--trajectories 8] [--rounds 3]
    python -m benchmarks.training.gpu --tiny    # the same code in seconds, also where there is no GPU

Needs only torch and transformers. The model is random, built from its configuration alone, sharded with FSDP2, and computes in
bfloat16 (`--tiny`: float32 on a CPU). Each section runs one round that is not counted, and prints medians of the others.

- update: packed rows of whole trajectories through the variable-length kernel, and AdamW on float32 weights. MFU is of the
  operations that one forward and one backward pass need, over those of a large matrix product in the same time.
- shared prefix: groups of 16 with prompts of four times the length of the responses, the prompt once per group or in each
  trajectory. Gradients are compared by their norm.
- vocabulary: log-probabilities and loss in chunks, beside all logits at once.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from agentrl.training.balance import Packing
from agentrl.training.batch import MicroBatch, pack_trajectories
from agentrl.training.model import decoder_layers, load_model, shape_of
from agentrl.training.model_flops import measured_peak_flops
from agentrl.training.optimiser import apply_gradients, build_adamw
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.scoring import score_tokens
from agentrl.training.vocabulary import vocabulary_scores
from agentrl.types import Trajectory
from benchmarks.training.vocabulary import plain_scores
from benchmarks.training.workload import VOCABULARY, make_groups

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a model is built from."""

    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int


SIZES = {
    "tiny": Size(width=64, inner=128, layers=2, heads=4, key_heads=2, head_dim=16, vocabulary=VOCABULARY),
    "0.5b": Size(width=896, inner=4864, layers=24, heads=14, key_heads=2, head_dim=64, vocabulary=151936),
    "1.5b": Size(width=1536, inner=8960, layers=28, heads=12, key_heads=2, head_dim=128, vocabulary=151936),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The model and where it is."""

    parallel: Parallel
    model: nn.Module
    dtype: torch.dtype
    size: Size

    def gradient_of(self, batches: Sequence[MicroBatch]) -> None:
        """Add the gradient of a policy loss over all rows."""
        num_scored = sum(len(batch.advantages_N) for batch in batches)
        for batch in batches:
            here = batch.to(self.parallel.device, self.parallel.sequence)
            logprobs_N = score_tokens(self.model, here.tokens, temperature=1.0).logprobs_N
            ratio_N = torch.exp(logprobs_N - logprobs_N.detach())
            (-(ratio_N * here.advantages_N).sum() / num_scored).backward()

    def seconds(self, work: Callable[[], Any], rounds: int) -> tuple[float, float]:
        """Return the median time of `work`, and the most GiB allocated meanwhile (NaN without a GPU)."""
        times = []
        self._wait()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(rounds + 1):
            started = time.perf_counter()
            work()
            self._wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:]), torch.cuda.max_memory_allocated() / GIB if self._on_gpu else math.nan

    @property
    def _on_gpu(self) -> bool:
        return self.parallel.device.type == "cuda"

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def open_bench(size: Size) -> Bench:
    """Build the model on the device, without weights from anywhere, and shard it."""
    store = open_store("127.0.0.1")
    here = ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
    parallel = Parallel(here)
    dtype = torch.bfloat16 if parallel.device.type == "cuda" else torch.float32
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        head_dim=size.head_dim,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, parallel.device:
        config.save_pretrained(folder)
        section: Any = SimpleNamespace(path=folder, dtype=str(dtype).removeprefix("torch."))
        model = load_model(section, initial_weights="random")
    parallel.shard(model, decoder_layers(model), dtype=dtype)
    return Bench(parallel=parallel, model=model, dtype=dtype, size=size)


def recorded(prompts: list[int], responses: list[list[int]]) -> list[Trajectory]:
    """Return trajectories of these lengths."""
    groups = make_groups(random.Random(0), prompts=prompts, responses=responses)
    return [made.ref for group in groups for made in group.trajectories]


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
    optimiser = build_adamw(bench.model.parameters(), betas=(0.9, 0.999), weight_decay=0.01)

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
    found: dict[bool, tuple[float, float]] = {}
    for shared in (False, True):
        rows = rows_of(trajectories, max_tokens=20 * response, share_prefixes=shared)
        norms: list[float] = []

        def gradient(rows: list[MicroBatch] = rows, norms: list[float] = norms) -> None:
            bench.gradient_of(rows)
            norms.append(_grad_norm(bench.model))

        found[shared] = (bench.seconds(gradient, rounds)[0], norms[-1])
    (apart_s, apart_norm), (shared_s, shared_norm) = found[False], found[True]
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
    bench = open_bench(SIZES[size])
    try:
        device = bench.parallel.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        print(f"{name}, torch {torch.__version__}, {size}, {bench.dtype}", flush=True)
        measure_update(bench, tokens=tokens, trajectories=given.trajectories, rounds=given.rounds)
        measure_prefix_sharing(bench, response=tokens // 16, rounds=given.rounds)
        measure_vocabulary(bench, tokens=tokens, rounds=given.rounds)
    finally:
        bench.parallel.close()


if __name__ == "__main__":
    main()
