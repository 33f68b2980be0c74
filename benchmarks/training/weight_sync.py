"""Speed of weight sync through shared memory, end to end, compared with a thread that copies as many bytes.

    OMP_WAIT_POLICY=PASSIVE python -m benchmarks.training.weight_sync [--gb 1.1] [--rounds 30] [--threads 0]

An actor of one rank (FSDP2) publishes, and an engine in another process loads: a sync starts with the actor's call and ends
when the engine has copied the last weight into its model. In turn with the syncs, one thread copies a buffer of the same size.
Checksums verify only the first sync. `OMP_WAIT_POLICY`, as in all workers of a run, keeps waiting threads from taking cores.

Prints both speeds, the ratio of the medians, CPU seconds, the extra memory of both processes during a sync, and leftovers. The
exit status is 1 if the ratio is below its bar, or something is left over.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.engine.embedded.resident_weights import ResidentWeights
from agentrl.training.model.decoder import decoder_layers
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.weight_publisher import WeightPublishing
from agentrl.weight_sync.base import Transport
from agentrl.weight_sync.tensor_layout import checksum_of

BAR = 0.35
BUCKET_BYTES = 256 * 2**20
WIDTH = 1024
LEFT_BYTES = 32 * 2**20
"""Limit of the growth of resident memory over all rounds, far below a hundredth of a copy per round."""


def build_model(num_bytes: float) -> nn.Module:
    """Return a Qwen3 of about `num_bytes` in float32, uninitialised; a sixth of it is the tied embedding."""
    settings: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": 16}
    settings |= {"num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}
    layer_bytes = 4 * (9 + 3) * WIDTH**2
    vocabulary = round(num_bytes / 6 / 4 / WIDTH)
    with torch.device("meta"):
        config = Qwen3Config(
            vocab_size=vocabulary, num_hidden_layers=max(1, round(num_bytes * 5 / 6 / layer_bytes)), **settings
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.to_empty(device="cpu")


def serve(pipe: Connection, num_bytes: float, num_threads: int) -> None:
    """Run the engine: load published weights, and report the CPU seconds."""
    torch.set_num_threads(num_threads)
    model = build_model(num_bytes).requires_grad_(False)
    for weight in model.parameters():
        weight.fill_(0.0)
    weights = ResidentWeights(model, "cpu")
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        if order == "state":
            pipe.send(state_of_process())
            continue
        if order == "checksums":
            pipe.send({name: checksum_of(weight) for name, weight in model.named_parameters()})
            continue
        started = time.process_time()
        weights.load(order)
        pipe.send(time.process_time() - started)


def state_of_process() -> dict[str, int]:
    """Return the resources of this process, and its peak of resident memory since the last call."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "VmHWM")}
    Path("/proc/self/clear_refs").write_text("5")
    return {
        "resident": kib["VmRSS"] * 1024,
        "peak": kib["VmHWM"] * 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": Path("/proc/self/maps").read_text().count("agentrl-weights"),
        "files": len(os.listdir("/dev/shm")),
    }


class OneThread:
    """Copy of a warm buffer by one thread, by the faster of torch and NumPy."""

    def __init__(self, num_bytes: int) -> None:
        self._source, self._target = (torch.ones(num_bytes // 4) for _ in range(2))

    def seconds(self, num_threads_after: int) -> tuple[float, float]:
        """Copy once with each; return the shorter time and the fewer CPU seconds."""
        torch.set_num_threads(1)
        times, cpu = [], []
        for copy in (
            lambda: self._target.copy_(self._source),
            lambda: np.copyto(self._target.numpy(), self._source.numpy()),
        ):
            started, started_cpu = time.perf_counter(), time.process_time()
            copy()
            times.append(time.perf_counter() - started)
            cpu.append(time.process_time() - started_cpu)
        torch.set_num_threads(num_threads_after)
        return min(times), min(cpu)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="threads of each process; 0: one per core")
    options = parser.parse_args()
    num_threads = options.threads or len(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    engine = spawn.Process(target=serve, args=(theirs, options.gb * 1e9, num_threads), daemon=True)
    engine.start()
    torch.set_num_threads(num_threads)
    model = build_model(options.gb * 1e9)
    store = open_store("127.0.0.1")
    context = ParallelContext(rank=0, world_size=1, master_addr="127.0.0.1", master_port=store.port, store=store)
    parallel = Parallel(context)
    parallel.shard(model, decoder_layers(model), dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            flat = weight.to_local().view(-1)  # pyright: ignore[reportAttributeAccessIssue]
            torch.arange(flat.numel(), dtype=torch.float32, out=flat)
    pipe.recv()
    try:
        return measure(model, parallel, pipe, rounds=options.rounds, num_threads=num_threads)
    finally:
        pipe.send(None)
        engine.join(60)
        parallel.close()


def measure(model: nn.Module, parallel: Parallel, pipe: Connection, *, rounds: int, num_threads: int) -> int:
    """Verify one sync, then measure `rounds` of them; return the exit status."""
    sync_s, copy_s, cpu_s, copy_cpu_s = [], [], [], []

    def sync(publishing: WeightPublishing) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        pipe.send(publishing.publish(Transport.SHARED_MEMORY))
        mine = time.process_time() - cpu
        theirs = pipe.recv()
        return time.perf_counter() - wall, mine + theirs

    checked = WeightPublishing(model, parallel, dtype=torch.float32, checked=True)
    sync(checked)
    pipe.send("checksums")
    assert pipe.recv() == {name: checksum_of(weight.to_local()) for name, weight in model.named_parameters()}  # pyright: ignore[reportAttributeAccessIssue]
    checked.close()
    publishing = WeightPublishing(model, parallel, dtype=torch.float32, checked=False)
    for _ in range(2):  # touches all pages, and releases those of the first publisher
        sync(publishing)
    num_bytes = sum(weight.numel() * 4 for weight in model.parameters())
    one_thread = OneThread(num_bytes)
    one_thread.seconds(num_threads)
    before = states(pipe)
    for _ in range(rounds):
        took_s, took_cpu_s = one_thread.seconds(num_threads)
        copy_s.append(took_s)
        copy_cpu_s.append(took_cpu_s)
        took_s, took_cpu_s = sync(publishing)
        sync_s.append(took_s)
        cpu_s.append(took_cpu_s)
    after = states(pipe)
    publishing.close()
    ratio = statistics.median(copy_s) / statistics.median(sync_s)
    print(
        f"{num_bytes / 1e9:.2f} GB, {rounds} syncs, {num_threads} threads in each process, load {os.getloadavg()[0]:.1f}"
    )
    for name, times in (("one thread's copy", copy_s), ("weight sync", sync_s)):
        print(f"{name:18s} {num_bytes / statistics.median(times) / 1e9:5.2f} GB/s (median {statistics.median(times):.3f} s, "
              f"least {min(times):.3f} s)")  # fmt: skip
    print(f"CPU: a sync, both processes, {statistics.median(cpu_s):.3f} s; the copy {statistics.median(copy_cpu_s):.3f} s; "
          f"ratio {statistics.median(copy_cpu_s) / statistics.median(cpu_s):.3f}")  # fmt: skip
    print(f"ratio {ratio:.3f} (bar: at least {BAR}); of the least times {min(copy_s) / min(sync_s):.3f}")
    problems = leftovers(before, after) + ([] if ratio >= BAR else [f"the ratio is below {BAR}"])
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def states(pipe: Connection) -> dict[str, dict[str, int]]:
    """Return the state of both processes."""
    pipe.send("state")
    return {"engine": pipe.recv(), "actor": state_of_process()}


def leftovers(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> list[str]:
    """Print memory and leftovers of the syncs; return what exceeds the limits."""
    problems = []
    for name, start in before.items():
        end = after[name]
        held, needed = end["resident"] - start["resident"], end["peak"] - max(end["resident"], start["resident"])
        print(f"{name:7s} resident {held / 2**20:+.1f} MiB after all, at most {needed / 2**20:+.1f} MiB meanwhile; "
              f"descriptors {end['descriptors'] - start['descriptors']:+d}, maps {end['maps'] - start['maps']:+d}, "
              f"files in /dev/shm {end['files'] - start['files']:+d}")  # fmt: skip
        if held > LEFT_BYTES or end["descriptors"] > start["descriptors"] or end["maps"] > start["maps"]:
            problems.append(f"the {name} keeps something after the syncs")
        if needed > BUCKET_BYTES:
            problems.append(f"the {name} had more than a bucket ({BUCKET_BYTES / 2**20:.0f} MiB) beside its weights")
    return problems


if __name__ == "__main__":
    sys.exit(main())
