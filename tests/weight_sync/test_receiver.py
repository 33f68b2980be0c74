"""Published weights that an engine takes, and those that it refuses."""

from collections.abc import Iterator

import pytest
import torch

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.transports.in_process import InProcessPublisher
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher

FORMS = {name: (torch.Size([8]), torch.float32) for name in ("trained", "frozen")}


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


@pytest.fixture
def receiver() -> WeightReceiver:
    return WeightReceiver(torch.device("cpu"))


def write(publisher: SharedMemoryPublisher, **values: float) -> WeightSource:
    views = publisher.open(FORMS)
    for name, value in values.items():
        views[name].fill_(value)
    return publisher.announce()


def taken(receiver: WeightReceiver, source: WeightSource) -> dict[str, float]:
    receiver.prepare(source)
    return {name: tensor[0].item() for name, tensor in receiver.tensors(source)}


def test_every_version_is_taken_whole(publisher: SharedMemoryPublisher, receiver: WeightReceiver):
    assert taken(receiver, write(publisher, trained=1, frozen=2)) == {"trained": 1, "frozen": 2}
    second = write(publisher, trained=3, frozen=2)
    assert taken(receiver, second) == {"trained": 3, "frozen": 2}
    assert taken(receiver, second) == {"trained": 3, "frozen": 2}, "memory can be read repeatedly"


def test_weights_of_another_publisher_are_taken(publisher: SharedMemoryPublisher, receiver: WeightReceiver):
    taken(receiver, write(publisher, trained=1, frozen=2))
    other = SharedMemoryPublisher()
    assert taken(receiver, write(other, trained=5, frozen=6)) == {"trained": 5, "frozen": 6}
    other.close()


def test_a_changed_byte_is_found_before_anything_is_taken(publisher: SharedMemoryPublisher, receiver: WeightReceiver):
    source = write(publisher, trained=1, frozen=2)
    publisher.open(FORMS)["frozen"][3] = 2.000001
    with pytest.raises(EngineError, match="`frozen` has the checksum"):
        receiver.prepare(source)


def test_without_checksums_nothing_is_compared(receiver: WeightReceiver):
    publisher = SharedMemoryPublisher(checked=False)
    source = write(publisher, trained=1, frozen=2)
    assert {spec.checksum for spec in source.tensors} == {None}
    assert taken(receiver, source) == {"trained": 1, "frozen": 2}
    publisher.close()


def test_within_a_process_the_engine_reads_the_actors_own_memory(receiver: WeightReceiver):
    weights = {"trained": torch.ones(8), "frozen": torch.zeros(8)}
    publisher = InProcessPublisher()
    source = publisher.publish(weights)
    read = dict(receiver.tensors(source))
    assert {name: tensor.data_ptr() for name, tensor in read.items()} == {
        name: tensor.data_ptr() for name, tensor in weights.items()
    }
    publisher.close()
    with pytest.raises(EngineError, match="only an engine in the actor's own process"):
        next(receiver.tensors(source))
