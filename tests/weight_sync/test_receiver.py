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
    return publisher.announce(values)


def taken(receiver: WeightReceiver, source: WeightSource) -> dict[str, float]:
    receiver.prepare(source)
    return {name: tensor[0].item() for name, tensor in receiver.tensors(source)}


def test_only_weights_written_since_are_taken(publisher: SharedMemoryPublisher, receiver: WeightReceiver):
    assert taken(receiver, write(publisher, trained=1, frozen=2)) == {"trained": 1, "frozen": 2}
    second = write(publisher, trained=3)
    assert taken(receiver, second) == {"trained": 3}
    assert taken(receiver, second) == {}
    late = WeightReceiver(torch.device("cpu"))
    assert taken(late, second) == {"trained": 3, "frozen": 2}, "unchanged weights remain available"


def test_a_receiver_catches_up_on_a_missed_version(publisher: SharedMemoryPublisher, receiver: WeightReceiver):
    taken(receiver, write(publisher, trained=1, frozen=2))
    write(publisher, frozen=5)
    assert taken(receiver, write(publisher, trained=3)) == {"trained": 3, "frozen": 5}


def test_everything_is_taken_from_another_publisher_and_after_an_interrupted_load(
    publisher: SharedMemoryPublisher, receiver: WeightReceiver
):
    first = write(publisher, trained=1, frozen=2)
    taken(receiver, first)
    other = SharedMemoryPublisher()
    assert len(taken(receiver, write(other, trained=1, frozen=2))) == 2
    broken_off = receiver.tensors(write(other, trained=7))
    next(broken_off)
    broken_off.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(taken(receiver, write(other, trained=8))) == 2
    other.close()


def test_an_engine_that_builds_whole_layers_takes_all_weights_each_time(publisher: SharedMemoryPublisher):
    receiver = WeightReceiver(torch.device("cpu"), only_changed=False)
    taken(receiver, write(publisher, trained=1, frozen=2))
    assert len(taken(receiver, write(publisher, trained=3))) == 2


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
    source = publisher.publish(weights, written=weights)
    read = dict(receiver.tensors(source))
    assert {name: tensor.data_ptr() for name, tensor in read.items()} == {
        name: tensor.data_ptr() for name, tensor in weights.items()
    }
    assert list(dict(receiver.tensors(publisher.publish(weights, written=["trained"])))) == ["trained"]
    publisher.close()
    with pytest.raises(EngineError, match="only an engine in the actor's own process"):
        next(receiver.tensors(source))
