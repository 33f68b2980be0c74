"""The ranks that train a model: process group, device, sharding, and collectives.

The same code runs on CPU (gloo) and on GPU (NCCL for CUDA tensors, gloo for the others), with one rank or many.
"""

import resource
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.training.packing.sequence_parallel import join_sequence_group

_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
_LOST_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection timed out",
    "Broken pipe",
    "No route to host",
    "ncclRemoteError",
)
"""Messages of gloo and NCCL when a connection to another rank breaks."""

T = TypeVar("T")

Store = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
"""Store at which the ranks of a group meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelContext:
    """Rank of this process, and address of rank 0."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int
    store: Store | None = None
    """Rank 0: the store that listens there already (`open_store`); None: open one."""
    sequence_parallel_size: int = 1
    """Number of neighbouring ranks that compute each row together; they must get the same trajectories."""
    num_threads: int = 0
    """CPU threads of the calling thread's operators; 0: unchanged."""


def open_store(host: str) -> Store:
    """Return the store of rank 0; it listens already, so that nobody else can take its `port`."""
    if not host.startswith("127."):
        return Store(host, 0, is_master=True, wait_for_workers=False)
    # On its own a store listens on every interface, whatever `host` is, without authentication.
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return Store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


class Parallel:
    """This process's membership in the group; `close` leaves it."""

    def __init__(self, context: ParallelContext) -> None:
        """Join the group; returns when every rank has."""
        if context.num_threads:
            torch.set_num_threads(context.num_threads)
        self.rank = context.rank
        self.world_size = context.world_size
        self.device = _device(context.rank)
        on_gpu = self.device.type == "cuda"
        store = context.store or Store(
            context.master_addr, context.master_port, is_master=context.rank == 0, wait_for_workers=False
        )
        self.store: Store = store
        """Store of the ranks, and of others who know its `address`."""
        self.address = f"{context.master_addr}:{context.master_port}"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=store,
            rank=context.rank,
            world_size=context.world_size,
            timeout=_COLLECTIVE_TIMEOUT,
            device_id=self.device if on_gpu else None,
        )
        self._mesh: DeviceMesh = init_device_mesh(
            self.device.type, (context.world_size,), mesh_dim_names=("data_parallel",)
        )
        self.sequence = join_sequence_group(
            context.rank, context.world_size, context.sequence_parallel_size, timeout=_COLLECTIVE_TIMEOUT
        )
        """Ranks that compute each row together with this one; None: there are none."""
        self.num_shares = context.world_size // context.sequence_parallel_size
        """Number of parts into which the trajectories of a step are divided."""

    def shard(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        *,
        dtype: torch.dtype,
        shard_size: int = 0,
        offload: bool = False,
    ) -> None:
        """Shard `model` in place over the ranks (FSDP2): trained weights keep their type, frozen ones get `dtype`.

        `layers` are gathered one at a time. `shard_size` neighbouring ranks share the weights, and others hold a copy; 0: all.
        `offload` keeps weights, gradients and optimiser on the CPU. Weights on the device `meta` stay there.
        """
        for weight in model.parameters():
            if not weight.requires_grad:
                weight.data = weight.data.to(dtype)
        mesh = self._mesh
        if shard_size not in (0, self.world_size):
            shape = (self.world_size // shard_size, shard_size)
            mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))
        policy = MixedPrecisionPolicy()
        if dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        place = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if offload else OffloadPolicy()
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=place)

    def gradient_passes(self, model: nn.Module, batches: Sequence[T]) -> Iterator[T]:
        """Yield the micro-batches of an update, each for one forward and one backward pass of `model`.

        Saves communication without changing the gradients: copies of the weights (`shard_size`) add up gradients only with the
        last micro-batch. A single rank also gathers weights only with the first and reduces gradients only with the last, if no
        weight is frozen or on the host.
        """
        root, groups = cast(FSDPModule, model), [part for part in model.modules() if isinstance(part, FSDPModule)]
        keeps_gathered = self.world_size == 1 and all(
            weight.requires_grad and weight.device.type == self.device.type for weight in model.parameters()
        )
        for index, batch in enumerate(batches):
            is_last = index == len(batches) - 1
            root.set_requires_all_reduce(is_last)
            if keeps_gathered:
                root.set_requires_gradient_sync(is_last)
                root.set_reshard_after_backward(is_last)
                for group in groups:
                    group.set_reshard_after_forward(False, recurse=False)
            try:
                yield batch
            finally:
                if keeps_gathered:  # a pass without gradients frees each layer, but never the root
                    for group in groups:
                        group.set_reshard_after_forward(group is not root, recurse=False)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each of `values` over the ranks; equal values of a sequence group count once."""
        totals = torch.tensor(values, dtype=torch.float64)
        if self.sequence is not None and self.sequence.rank > 0:
            totals.zero_()
        dist.all_reduce(totals)
        return totals.tolist()

    def max(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each of `values` over the ranks."""
        maxima = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return maxima.tolist()

    def peak_memory_bytes(self) -> int:
        """Return the peak memory of this rank: allocated on its GPU, or resident without one."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def barrier(self) -> None:
        """Wait for every rank."""
        self.sum([0.0])

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def is_lost_peer(error: BaseException | None) -> bool:
    """Return True if `error`, or a cause of it, says that another rank or the network is gone.

    Gloo reports this only by the text of a `RuntimeError`.
    """
    while error is not None:
        if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_PEER_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_tensors(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by name, gathered to the CPU one at a time; all ranks must iterate over all of them.

    Tied weights come once, under the first name, as in a Hugging Face checkpoint.
    """
    for name, tensor in named_weights(model):
        yield name, gathered_to_cpu(tensor, dtype)


def gathered_to_cpu(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a whole tensor on the CPU, in `dtype` if it has floating-point numbers; all ranks must call it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().to(device="cpu", dtype=dtype if whole.is_floating_point() else whole.dtype)


def named_weights(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Yield every weight by name, as a DTensor if it is sharded; tied ones once, under the first name."""
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this rank's part of a tensor, and its place in the whole, one slice per dimension."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))


def _device(rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
