"""Published weights of one rank, and the memory needed; `test_two_ranks.py` has two ranks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentrl.training.parallel import Parallel
from agentrl.training.weight_publisher import WeightPublishing
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.transports.in_process import offered_weights
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.training_cases import alone


class LargestAllocation(TorchDispatchMode):
    """Record of the largest storage that an operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {storage.data_ptr() for storage in storages((args, kwargs))}
        allocated = [storage.nbytes() for storage in storages(result) if storage.data_ptr() not in inputs]
        self.num_bytes = max(self.num_bytes, *allocated, 0)
        return result


def storages(values: Any) -> list[Any]:
    tensors = [tensor for tensor in tree_leaves(values) if isinstance(tensor, Tensor)]
    return [(tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage() for tensor in tensors]


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    group = Parallel(alone())
    yield group
    group.close()


@pytest.fixture
def model(parallel: Parallel) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 300), nn.Linear(300, 100))
    parallel.shard(layers, list(layers), dtype=torch.float32)
    return layers


@pytest.fixture
def publishing(model: nn.Module, parallel: Parallel) -> Iterator[WeightPublishing]:
    started = WeightPublishing(model, parallel, dtype=torch.bfloat16, checked=True)
    yield started
    started.close()


def local(weight: Any) -> Tensor:
    return weight.to_local().detach()


def published(publishing: WeightPublishing, transport: Transport = Transport.SHARED_MEMORY) -> WeightSource:
    source = publishing.publish(transport)
    assert source is not None
    return source


NAMES = {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}


def test_weights_are_published_in_the_engines_type(model: nn.Module, publishing: WeightPublishing):
    read = dict(read_tensors(published(publishing)))
    assert read.keys() == NAMES
    for name, weight in model.named_parameters():
        assert torch.equal(read[name], local(weight).bfloat16())


@pytest.mark.parametrize("transport", [Transport.SHARED_MEMORY, Transport.IN_PROCESS])
def test_every_publication_has_the_latest_weights(model: nn.Module, publishing: WeightPublishing, transport: Transport):
    published(publishing, transport)
    with torch.no_grad():
        model[1].bias.fill_(7.0)  # pyright: ignore[reportIndexIssue]
    source = published(publishing, transport)
    read = offered_weights(source) if transport == Transport.IN_PROCESS else dict(read_tensors(source))
    assert read["1.bias"].float().tolist() == [7.0] * 300


def test_publishing_to_shared_memory_makes_no_copy(model: nn.Module, publishing: WeightPublishing):
    published(publishing)
    with LargestAllocation() as largest:
        published(publishing)
    assert largest.num_bytes < 10_000, "a few numbers, but no matrix (at least 60,000 bytes)"


def test_the_in_process_transport_offers_the_actors_own_memory(model: nn.Module, publishing: WeightPublishing):
    offered = offered_weights(published(publishing, Transport.IN_PROCESS))
    assert {name: tensor.data_ptr() for name, tensor in offered.items()} == {
        name: local(weight).data_ptr() for name, weight in model.named_parameters()
    }


def test_gathered_weights_left_by_a_pass_do_not_change_what_is_published(
    model: nn.Module, publishing: WeightPublishing
):
    with torch.no_grad():
        model(torch.ones(2, 200))
    names = {spec.name for spec in published(publishing).tensors}
    assert names == NAMES
