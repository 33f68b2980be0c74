"""The ranks that train one model: process group, device, sharding, and the few collectives that the rest needs.

The same code runs on CPU (gloo) and on GPU (NCCL for CUDA tensors, gloo for the others), with one rank or many.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

_COLLECTIVE_TIMEOUT = timedelta(minutes=30)

Store = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
"""What the ranks of a group meet at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelContext:
    """Which rank this process is, and where rank 0 is met. Example: `ParallelContext(rank=0, world_size=1, ...)`."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int
    store: Store | None = None
    """Rank 0: what listens there already (`open_store`); absent, it listens there itself, if nobody else does by then."""


def open_store(host: str) -> Store:
    """Return what the ranks meet at, as rank 0: it listens from now on, so that nobody else can have its `port`."""
    return Store(host, 0, is_master=True, wait_for_workers=False)


class Parallel:
    """This process's membership in the group; `close` leaves it."""

    def __init__(self, context: ParallelContext) -> None:
        """Join the group; returns when every rank has."""
        self.rank = context.rank
        self.world_size = context.world_size
        self.device = _device(context.rank)
        on_gpu = self.device.type == "cuda"
        store = context.store or Store(
            context.master_addr, context.master_port, is_master=context.rank == 0, wait_for_workers=False
        )
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

    def shard(self, model: nn.Module, layers: Sequence[nn.Module], *, dtype: torch.dtype) -> None:
        """Shard `model` in place over the ranks (FSDP2): the weights keep their type, the computation uses `dtype`."""
        model.to(self.device)
        policy = MixedPrecisionPolicy()
        if dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(model, mesh=self._mesh, mp_policy=policy)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add each of `values` over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Take the greatest of each of `values` over the ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        totals = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(totals, operation)
        return totals.tolist()

    def barrier(self) -> None:
        """Wait for every rank."""
        self.sum([0.0])

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def full_tensors(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by name, gathered to the CPU one at a time; all ranks must go through all of them.

    Tied weights come once, under the first name, as in a Hugging Face checkpoint.
    """
    for name, tensor in _weights(model):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        yield name, whole.detach().to(device="cpu", dtype=dtype if whole.is_floating_point() else whole.dtype)


def _weights(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def _device(rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
