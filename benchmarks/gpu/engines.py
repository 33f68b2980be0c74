"""Engines on the actor's GPU: new weights by CUDA IPC, and memory that they free in their sleep."""

import asyncio
import math
import multiprocessing
import random
import time
from collections.abc import Awaitable
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.engine.embedded.engine import TransformersEngine
from agentrl.engine.embedded.resident_weights import ResidentWeights
from agentrl.training.parallel import full_tensors
from agentrl.training.weight_publisher import WeightPublishing
from agentrl.types import Deadline, SamplingParams
from agentrl.weight_sync.base import Transport
from agentrl.weight_sync.tensor_layout import checksum_of
from agentrl.weight_sync.transports.cuda_ipc import release_cached_memory
from benchmarks.gpu.bench import GIB, Bench

_WAYS = {
    Transport.CUDA_IPC: "CUDA IPC",
    Transport.BROADCAST: "broadcast over gloo (CUDA IPC needs a GPU and is untried here)",
}
_NUM_REQUESTS = 16
_TIMEOUT_S = 300.0


def serve(pipe: Connection, path: str, dtype: str, device: str) -> None:
    """Be an engine in a process of its own: load what is announced, and say when it is there."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=getattr(torch, dtype))
    weights = ResidentWeights(model.requires_grad_(False), device)
    while (order := pipe.recv()) is not None:
        if order == "checksums":
            pipe.send({name: checksum_of(weight) for name, weight in model.named_parameters()})
            continue
        weights.load(order)
        if device != "cpu":
            torch.cuda.synchronize()
        pipe.send("there")


def measure_sync(bench: Bench, *, rounds: int) -> None:
    """Print how fast new weights are in an engine of another process, beside a copy on the device of as many bytes."""
    transport = Transport.CUDA_IPC if bench.on_gpu else Transport.BROADCAST
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    arguments = (theirs, bench.source.path, bench.source.dtype, str(bench.parallel.device))
    engine = spawn.Process(target=serve, args=arguments, daemon=True)
    engine.start()
    theirs.close()  # so that its death is seen here
    publishing = WeightPublishing(bench.model, bench.parallel, dtype=bench.dtype, checked=False)

    def sync() -> None:
        source = publishing.publish(transport, ["engine 0/0"])
        assert source is not None, "there is one rank"
        pipe.send(replace(source, receiver="engine 0"))
        publishing.send(source)
        pipe.recv()

    try:
        sync()
        pipe.send("checksums")
        expected = {name: checksum_of(weight) for name, weight in full_tensors(bench.model, bench.dtype)}
        assert pipe.recv() == expected, "the engine has other weights than the actor"
        sync_s, _ = bench.seconds(sync, rounds)
    finally:
        if engine.is_alive():
            pipe.send(None)
        engine.join(60)
        publishing.close()
    num_bytes = sum(weight.numel() for weight in bench.model.parameters()) * bench.dtype.itemsize
    octets = [torch.zeros(num_bytes, dtype=torch.uint8, device=bench.parallel.device) for _ in range(2)]
    copy_s, _ = bench.seconds(lambda: octets[1].copy_(octets[0]), rounds)
    print(f"weight sync by {_WAYS[transport]}: {num_bytes / 1e9:.3g} GB in {1e3 * sync_s:.2f} ms, "
          f"{num_bytes / sync_s / 1e9:.3g} GB/s; x {copy_s / sync_s:.3f} of a copy on the device, "
          f"{num_bytes / copy_s / 1e9:.3g} GB/s (aim by CUDA IPC: 0.5)", flush=True)  # fmt: skip


def measure_sleep(bench: Bench, *, tokens: int) -> None:
    """Print what the embedded engine holds awake and asleep, and how long it takes to fall asleep and to wake."""
    asyncio.run(_sleep(bench, tokens=tokens))


async def _sleep(bench: Bench, *, tokens: int) -> None:
    release_cached_memory()  # what the sections before this one left
    before = _held_gib(bench)
    rollout: Any = SimpleNamespace(max_concurrent_trajectories=_NUM_REQUESTS)
    engine = TransformersEngine(bench.source, rollout, max_tokens=2 * tokens)
    publishing = WeightPublishing(bench.model, bench.parallel, dtype=bench.dtype, checked=False)
    try:
        await engine.start()
        source = publishing.publish(Transport.IN_PROCESS)
        assert source is not None, "there is one rank"
        await engine.load_weights(source, version=1)
        answers = await _ask(engine, bench, tokens=tokens)
        print(f"embedded engine awake: {_held_gib(bench) - before:.2f} GiB", flush=True)
        sleep_s = await _seconds(bench, engine.sleep())
        asleep_gib = _held_gib(bench) - before
        wake_s = await _seconds(bench, engine.wake(("weights",)))
        wake_s += await _seconds(bench, engine.load_weights(source, version=1))
        wake_s += await _seconds(bench, engine.wake(("kv_cache",)))
        same = await _ask(engine, bench, tokens=tokens) == answers
        print(f"asleep: {asleep_gib:.2f} GiB; falls asleep in {1e3 * sleep_s:.1f} ms, wakes with its weights in "
              f"{1e3 * wake_s:.1f} ms, and samples {'as before' if same else 'SOMETHING ELSE'}",
              flush=True)  # fmt: skip
    finally:
        await engine.aclose()
        publishing.close()


async def _ask(engine: TransformersEngine, bench: Bench, *, tokens: int) -> list[list[int]]:
    """Have all rows of the cache filled; returns what was sampled, greedily."""
    draws = random.Random(0)
    prompts = [[draws.randrange(bench.size.vocabulary) for _ in range(tokens)] for _ in range(_NUM_REQUESTS)]
    params = SamplingParams(max_tokens=8, temperature=0.0)
    completions = await asyncio.gather(
        *(
            engine.generate(prompt, params, request_id=str(index), deadline=Deadline.after(_TIMEOUT_S))
            for index, prompt in enumerate(prompts)
        )
    )
    return [completion.token_ids for completion in completions]


async def _seconds(bench: Bench, call: Awaitable[None]) -> float:
    bench.wait()
    started = time.perf_counter()
    await call
    bench.wait()
    return time.perf_counter() - started


def _held_gib(bench: Bench) -> float:
    """Return what others on the GPU cannot have, the allocator's own reserves included; NaN without a GPU."""
    return torch.cuda.memory_reserved() / GIB if bench.on_gpu else math.nan
