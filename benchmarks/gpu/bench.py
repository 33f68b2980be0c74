"""Model of the GPU benchmarks: random, built from its configuration alone, sharded with FSDP2 as the actor's is."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config

from agentrl.training.model.decoder import load_model
from agentrl.training.model.sharded_model import shard_model
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.scoring.token_logprobs import score_tokens
from benchmarks.training.workload import VOCABULARY

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Dimensions of a model."""

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
    source: Any
    """The folder that it began as, in the type of the computation: a `ModelSection`, which needs OmegaConf, in all but name."""
    dtype: torch.dtype
    size: Size

    @property
    def on_gpu(self) -> bool:
        """True with a CUDA device."""
        return self.parallel.device.type == "cuda"

    def gradient_of(self, batches: Sequence[MicroBatch]) -> None:
        """Add the gradient of a policy loss over all rows."""
        num_scored = sum(len(batch.advantages_N) for batch in batches)
        for batch in self.parallel.gradient_passes(self.model, batches):
            on_device = batch.to(self.parallel.device, self.parallel.sequence)
            logprobs_N = score_tokens(self.model, on_device.tokens, temperature=1.0).logprobs_N
            ratio_N = torch.exp(logprobs_N - logprobs_N.detach())
            (-(ratio_N * on_device.advantages_N).sum() / num_scored).backward()

    def seconds(self, work: Callable[[], Any], rounds: int) -> tuple[float, float]:
        """Return the median time of `work`, and the most GiB allocated meanwhile (NaN without a GPU)."""
        times = []
        self.wait()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(rounds + 1):
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:]), torch.cuda.max_memory_allocated() / GIB if self.on_gpu else math.nan

    def wait(self) -> None:
        """Return when the device has done what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()


def open_bench(size: Size, folder: str, *, compiled: bool = False, liger: bool = False) -> Bench:
    """Build the model on the device from random weights, save it in `folder` for engines, and shard it.

    Args:
        size: of the model.
        folder: receives the model.
        compiled: compile its layers (`actor.compile`).
        liger: use Liger's kernels (`actor.liger`).
    """
    store = open_store("127.0.0.1")
    place = ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
    parallel = Parallel(place)
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
    config.save_pretrained(folder)
    source = SimpleNamespace(path=folder, dtype=str(dtype).removeprefix("torch."))
    with parallel.device:
        model = load_model(source, initial_weights="random")  # pyright: ignore[reportArgumentType]
    model.save_pretrained(folder, state_dict={name: weight.to(dtype) for name, weight in model.named_parameters()})
    actor: Any = SimpleNamespace(
        liger=liger, compile=compiled, activation_checkpointing=False, shard_size=0, cpu_offload=False
    )
    shard_model(model, None, parallel, actor, dtype=dtype)
    return Bench(parallel=parallel, model=model, source=source, dtype=dtype, size=size)
