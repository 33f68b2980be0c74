"""Estimate of whether the models of a run fit their devices, before any process starts."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from agentrl.cluster.weight_sync import transport_of
from agentrl.config.layout import layout, with_sizes_of_pools
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.weight_files import tensor_shapes
from agentrl.run.preflight.memory_model import (
    GIB,
    Memory,
    ModelSize,
    host_memory_of_process,
    memory_of_process,
    shared_weights,
)
from agentrl.run.preflight.models.folders import language_settings, trained_or_asked
from agentrl.weight_sync.base import Transport

_SIZES = ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
"""Keys of a `config.json` that an estimate needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory of this machine."""

    ram_bytes: int
    """RAM that this process and its children may use, in bytes."""
    gpu_bytes: Sequence[int] = ()
    """Memory of each visible GPU, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """Memory needed on one device. Example: `DeviceEstimate(device="each GPU of `cluster.pools.policy`", ...)`."""

    device: str
    memory: Memory
    capacity_bytes: float | None = None
    """Memory of the device in bytes; None if it belongs to another machine and is not configured."""
    is_gpu: bool = False

    @property
    def refused_bytes(self) -> float:
        """Bytes that must fit: a host may swap, and a GPU ends the run with the first row that is too long."""
        return self.memory.in_a_full_row if self.is_gpu else self.memory.certain

    def warning(self) -> str | None:
        """Return that the device may be too small, if so."""
        if self.capacity_bytes is None or self.memory.at_most <= self.capacity_bytes:
            return None
        return (
            f"memory (estimate), {self.device}: up to {self.memory.at_most / GIB:.2f} GiB may be taken, and it has "
            f"{self.capacity_bytes / GIB:.1f}; long rows and many trajectories at once may end the run. Lower "
            "`actor.max_tokens_per_micro_batch`, `rollout.max_concurrent_trajectories` or `rollout.max_response_tokens`"
        )

    def describe(self) -> str:
        """Return the estimate in one line."""
        total = "" if self.capacity_bytes is None else f" of {self.capacity_bytes / GIB:.1f}"
        certain, at_most = self.memory.certain / GIB, self.memory.at_most / GIB
        return f"memory (estimate), {self.device}: {certain:.2f}{total} GiB, at most {at_most:.2f}: {self.memory.describe()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The estimate for every device, in lines for a person."""

    notes: list[str]
    warnings: list[str]
    """Devices that may be too small."""


def check_memory(config: RunConfig, machine: Machine | None = None) -> MemoryReport:
    """Estimate the memory of every device, and compare it with what the device has.

    Raises:
        ConfigError: weights, gradients, optimiser and engine alone do not fit; on a GPU, with the longest row.
    """
    machine = machine or this_machine()
    sizes: dict[str, ModelSize] = {}
    for key, path in trained_or_asked(config).items():
        if (size := read_size(path, key=key)) is None:
            note = f"memory: no estimate: `{key}` ({path}) is no folder here with safetensors and sizes of a known name"
            return MemoryReport(notes=[note], warnings=[])
        sizes[key] = size
    estimates = estimate_devices(config, sizes, machine)
    for estimate in estimates:
        if estimate.capacity_bytes is not None and estimate.refused_bytes > estimate.capacity_bytes:
            ways_out = " or ".join(_ways_out(estimate, config))
            raise ConfigError(f"{estimate.describe()}. That cannot fit: take {ways_out}.")
    warnings = [warning for estimate in estimates if (warning := estimate.warning()) is not None]
    return MemoryReport(notes=[estimate.describe() for estimate in estimates], warnings=warnings)


def _ways_out(estimate: DeviceEstimate, config: RunConfig) -> list[str]:
    """Return what shrinks the two largest parts of the memory that does not fit."""
    memory, on_gpu, actor = estimate.memory, estimate.is_gpu, config.actor
    fewer_weights = "a smaller model" if actor.lora.rank else "`actor.lora`"
    fewer_tokens = "a smaller `actor.max_tokens_per_micro_batch`"
    part_of = {
        "more ranks (`actor.num_workers`)" if on_gpu else fewer_weights: (
            memory.weights + memory.gradients + memory.optimiser + memory.checkpoint
        ),
        fewer_tokens if actor.activation_checkpointing else "`actor.activation_checkpointing`": (
            memory.activations_at_most if on_gpu else 0.0  # a host is refused for what is certain
        ),
        "more GPUs for each engine (`rollout.tensor_parallel_size`)" if on_gpu else "fewer `rollout.num_engines`": (
            memory.engine
        ),
        "a smaller `rollout.kv_memory_gb`": memory.kv_cache,
        "another `cluster.weight_transport`": memory.shared_weights,
    }
    largest = sorted(part_of, key=lambda way: -part_of[way])[:2]
    return [way for way in largest if part_of[way] > 0] or ["a smaller model"]


def estimate_devices(config: RunConfig, sizes: Mapping[str, ModelSize], machine: Machine) -> list[DeviceEstimate]:
    """Return what is on each kind of device, which processes may share; by phase where engines sleep in one of them."""
    is_here = config.cluster.address is None
    gpu_bytes = config.cluster.gpu_memory_gb * GIB or min(machine.gpu_bytes, default=None)
    if not config.cluster.roles and (machine.gpu_bytes if is_here else config.cluster.gpu_memory_gb):
        share_one = is_here and len(machine.gpu_bytes) == 1
        on_gpus, on_host = _without_pools(config, sizes, share_one=share_one)
    else:
        on_gpus, on_host = _in_pools(config, sizes)
    if transport_of(with_sizes_of_pools(config)) is Transport.SHARED_MEMORY:
        on_host += shared_weights(config, sizes)
    sleeps = config.cluster.colocated
    estimates = [
        DeviceEstimate(device=name, memory=memory, capacity_bytes=gpu_bytes, is_gpu=True)
        for device, memory_of_device in on_gpus.items()
        for name, memory in _phases(device, memory_of_device, engine_sleeps=sleeps).items()
    ]
    if on_host.at_most > 0:
        where, ram_bytes = ("this machine", machine.ram_bytes) if is_here else ("all machines together", None)
        sleeps = sleeps and config.rollout.engine != "vllm"  # which keeps all of its memory where it has no GPU
        estimates += [
            DeviceEstimate(device=name, memory=memory, capacity_bytes=ram_bytes)
            for name, memory in _phases(where, on_host, engine_sleeps=sleeps).items()
        ]
    return estimates


def _phases(device: str, memory: Memory, *, engine_sleeps: bool) -> dict[str, Memory]:
    """Return what is on a device at once, by its name: of what engines and models have in turn, either."""
    if not (engine_sleeps and memory.engine and memory.activations_at_most):
        return {device: memory}
    return {f"{device}, in updates": memory.in_updates(), f"{device}, in rollouts": memory.in_rollouts()}


def _in_pools(config: RunConfig, sizes: Mapping[str, ModelSize]) -> tuple[dict[str, Memory], Memory]:
    """Return what is on each GPU of the pools that have some, and what all others and all hosts have together."""
    on_gpus: dict[str, Memory] = {}
    on_host = Memory()
    for placement in layout(config):
        pool = None if placement.pool is None else config.cluster.pools[placement.pool]
        if pool is not None and pool.num_gpus > 0:
            device = f"each GPU of `cluster.pools.{placement.pool}`"
            each = memory_of_process(placement, config, sizes, on_gpu=True)
            on_one = each.times(1 / min(1.0, pool.num_gpus))  # a GPU may hold several such processes
            before = on_gpus.get(device, Memory())
            # What roles of a pool compute with, one after another, stays with each for its next turn unless engines need it.
            on_gpus[device] = before.in_turns(on_one) if config.cluster.colocated else before + on_one
            on_host += host_memory_of_process(placement, config, sizes).times(placement.num_processes)
        else:
            each = memory_of_process(placement, config, sizes, on_gpu=False)
            on_host += each.times(placement.num_processes)
    return on_gpus, on_host


def _without_pools(
    config: RunConfig, sizes: Mapping[str, ModelSize], *, share_one: bool
) -> tuple[dict[str, Memory], Memory]:
    """Return what is on each GPU, where every process has its own or all share the only one, and on the host."""
    on_gpus: dict[str, Memory] = {}
    on_host = Memory()
    for placement in layout(config):
        each = memory_of_process(placement, config, sizes, on_gpu=True)
        on_host += host_memory_of_process(placement, config, sizes).times(placement.num_processes)
        if share_one:
            device = "the GPU of this machine"
            on_gpus[device] = on_gpus.get(device, Memory()) + each.times(placement.num_processes)
        else:
            on_gpus[f"each GPU of `{placement.role}`"] = each
    return on_gpus, on_host


def read_size(path: str, *, key: str = "model.path") -> ModelSize | None:
    """Return the size of the model in a folder that `key` names, from the headers of its files.

    None if it has no safetensors, or if its `config.json` has other names for its sizes, as GPT-2's has.

    Raises:
        ConfigError: its weights cannot be read.
    """
    # Shapes first: a model on a hub has none here, and its settings need not be asked for.
    if not (shapes := tensor_shapes(path, key=key)) or (settings := language_settings(path)) is None:
        return None
    if any(not isinstance(settings.get(name), int) for name in _SIZES):
        return None
    heads = settings["num_attention_heads"]
    head_width = settings.get("head_dim") or settings["hidden_size"] // heads
    per_expert = settings.get("moe_intermediate_size") or settings["intermediate_size"]
    return ModelSize(
        num_weights=sum(map(prod, shapes.values())),
        vocabulary=settings["vocab_size"],
        num_layers=settings["num_hidden_layers"],
        width=settings["hidden_size"],
        heads_width=heads * head_width,
        kv_width=(settings.get("num_key_value_heads") or heads) * head_width,
        inner_width=per_expert * (settings.get("num_experts_per_tok") or 1),
    )


def this_machine() -> Machine:
    """Look at what this machine has."""
    return Machine(ram_bytes=_ram_bytes(), gpu_bytes=_gpu_bytes())


def _ram_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container; `max` is none
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def _gpu_bytes() -> list[int]:
    """Return the memory of the GPUs that Ray would find, which looks at the same variable."""
    program, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    if program is None or visible == "":
        return []
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return []
    sizes = [int(float(line)) * 2**20 for line in answer.stdout.split("\n") if line.strip()]
    return sizes if visible is None else sizes[: len(visible.split(","))]
