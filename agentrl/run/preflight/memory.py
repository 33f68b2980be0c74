"""Estimate of whether the models of a run fit their devices, before any process starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from agentrl.cluster.learner import transport_of
from agentrl.config.layout import Placement, layout, with_sizes_of_pools
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
from agentrl.run.preflight.models.dtype import query_gpus
from agentrl.run.preflight.models.folders import language_settings, trained_or_asked
from agentrl.weight_sync.base import Transport

_SIZES = ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
"""Keys of a `config.json` that an estimate needs."""
_WAYS_OUT = (
    "`actor.max_tokens_per_micro_batch`, `actor.activation_checkpointing`, `actor.num_workers`, `actor.lora`, "
    "`rollout.kv_memory_gb`, `rollout.max_concurrent_trajectories`, `rollout.tensor_parallel_size`, `rollout.num_engines`, "
    "`cluster.weight_transport` or a smaller model"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory of this machine that this process and its children may use."""

    ram_bytes: int
    gpu_bytes: Sequence[int] = ()
    """Memory of each visible GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """Memory needed on one device. Example: `DeviceEstimate(device="each GPU of `cluster.pools.policy`", ...)`."""

    device: str
    memory: Memory
    capacity_bytes: float | None = None
    """None if the device belongs to another machine and its memory is not configured."""
    is_gpu: bool = False

    @property
    def refused_bytes(self) -> float:
        """Bytes that must fit: a host may swap, and a GPU ends the run with the first row that is too long."""
        return self.memory.at_most - self.memory.kv_cache_at_most if self.is_gpu else self.memory.certain

    def describe(self) -> str:
        """Return the estimate in one line."""
        total = "" if self.capacity_bytes is None else f" of {self.capacity_bytes / GIB:.1f}"
        certain, at_most = self.memory.certain / GIB, self.memory.at_most / GIB
        return f"memory (estimate), {self.device}: {certain:.2f}{total} GiB, at most {at_most:.2f}: {self.memory.describe()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """The estimate for every device, in lines for a person."""

    notes: list[str]
    warnings: list[str] = field(default_factory=list)
    """Devices that may be too small."""


def check_memory(config: RunConfig, machine: Machine | None = None) -> MemoryReport:
    """Estimate the memory of every device, and compare it with what the device has.

    Raises:
        ConfigError: weights, gradients, optimiser and engine alone do not fit; on a GPU, with the longest row.
    """
    sizes: dict[str, ModelSize] = {}
    for key, path in trained_or_asked(config).items():
        if (size := read_size(path, key=key)) is None:
            note = f"memory: no estimate: `{key}` ({path}) is no folder here with safetensors and sizes of a known name"
            return MemoryReport(notes=[note])
        sizes[key] = size
    report = MemoryReport(notes=[])
    for estimate in estimate_devices(config, sizes, machine or this_machine()):
        line, capacity = estimate.describe(), estimate.capacity_bytes
        report.notes.append(line)
        if capacity is None:
            continue
        if estimate.refused_bytes > capacity:
            raise ConfigError(f"{line}. That cannot fit: shrink the largest part ({_WAYS_OUT}).")
        if estimate.memory.at_most > capacity:
            report.warnings.append(f"{line}. That may not fit with long rows or many trajectories: see {_WAYS_OUT}")
    return report


def estimate_devices(config: RunConfig, sizes: Mapping[str, ModelSize], machine: Machine) -> list[DeviceEstimate]:
    """Return the memory on each kind of GPU, which processes may share, and on the host, last."""
    cluster, is_here = config.cluster, config.cluster.address is None
    on_gpus: dict[str, Memory] = {}
    on_host = Memory()
    for placement in layout(config):
        device, share = _gpu_of(placement, config, machine)
        each = memory_of_process(placement, config, sizes, on_gpu=device is not None)
        if device is None:
            on_host += each.times(placement.num_processes)
            continue
        before, on_one = on_gpus.get(device, Memory()), each.times(share)
        # What roles of a pool compute with, one after another, stays with each for its next turn unless engines need it.
        on_gpus[device] = before.in_turns(on_one) if cluster.colocated else before + on_one
        on_host += host_memory_of_process(placement, config, sizes).times(placement.num_processes)
    if transport_of(with_sizes_of_pools(config)) is Transport.SHARED_MEMORY:
        on_host += shared_weights(config, sizes)
    gpu_bytes = cluster.gpu_memory_gb * GIB or min(machine.gpu_bytes, default=None)
    estimates: list[DeviceEstimate] = []
    for device, memory in on_gpus.items():
        phases = {device: memory}
        if cluster.colocated and memory.engine and memory.activations_at_most:
            phases = {f"{device}, in {phase}": part for phase, part in memory.in_phases().items()}
        for name, part in phases.items():
            estimates.append(DeviceEstimate(device=name, memory=part, capacity_bytes=gpu_bytes, is_gpu=True))
    where, ram_bytes = ("this machine", machine.ram_bytes) if is_here else ("all machines together", None)
    return [*estimates, DeviceEstimate(device=where, memory=on_host, capacity_bytes=ram_bytes)]


def _gpu_of(placement: Placement, config: RunConfig, machine: Machine) -> tuple[str | None, float]:
    """Return the name of the GPUs of a role, and its processes on each; None if they have none."""
    cluster, is_here = config.cluster, config.cluster.address is None
    if placement.pool is not None:
        num_gpus = cluster.pools[placement.pool].num_gpus
        return (f"each GPU of `cluster.pools.{placement.pool}`", 1 / min(1.0, num_gpus)) if num_gpus else (None, 0)
    if not (machine.gpu_bytes if is_here else cluster.gpu_memory_gb):
        return None, 0
    if is_here and len(machine.gpu_bytes) == 1:
        return "the GPU of this machine", placement.num_processes
    return f"each GPU of `{placement.role}`", 1


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
    """Read the memory of this machine, of its container, and of its GPUs."""
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container; `max` is none
    text = limit.read_text().strip() if limit.is_file() else "max"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # which Ray reads too
    gpu_bytes = [int(size) * 2**20 for size in query_gpus("memory.total")]
    return Machine(
        ram_bytes=min(ram_bytes, int(text)) if text.isdigit() else ram_bytes,
        gpu_bytes=gpu_bytes if visible is None else gpu_bytes[: len([gpu for gpu in visible.split(",") if gpu])],
    )
