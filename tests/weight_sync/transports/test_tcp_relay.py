"""Transfer of weights over the network, to a process that does not map the publisher's memory."""

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from agentrl.errors import EngineDeadError
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher, read_tensors
from agentrl.weight_sync.transports.tcp_relay import WeightReader, WeightServer
from tests.runners.run_process import wait_until


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


@pytest.fixture(scope="module")
def server() -> WeightServer:
    return WeightServer("127.0.0.1")


@pytest.fixture
def reader() -> WeightReader:
    return WeightReader()


def test_every_version_is_read_as_it_was_published(
    publisher: SharedMemoryPublisher, server: WeightServer, reader: WeightReader
):
    num_open: list[int] = []
    num_threads = threading.active_count()
    for version in range(4):
        # More than a bucket, then less than a connection's share.
        weights = {"large": torch.randn(1 if version == 3 else 20_000_000), "small": torch.tensor([version])}
        source = publisher.publish(weights.items())
        copy = reader.read(source, server.serve(source))
        assert copy.address != source.address
        assert copy.tensors == source.tensors
        read = dict(read_tensors(copy))
        assert all(torch.equal(read[name], weights[name]) for name in weights)
        # The server closes a connection in a thread of its own, maybe after the reader has all bytes.
        assert wait_until(lambda: threading.active_count() <= num_threads)
        num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[-1] <= num_open[0] + 1, "nothing is left open"


def test_a_reader_without_the_secret_gets_nothing(publisher: SharedMemoryPublisher, server: WeightServer):
    source = publisher.publish([("a", torch.ones(100))])
    served = server.serve(source)
    assert repr(served.secret) not in repr(served)
    with socket.create_connection((served.host, served.port), timeout=60) as stranger:
        stranger.sendall(bytes(len(served.secret)) + (0).to_bytes(8) + (400).to_bytes(8))
        assert stranger.recv(1) == b""


def test_a_lost_publisher_raises_engine_dead(server: WeightServer, reader: WeightReader):
    gone = SharedMemoryPublisher()
    source = gone.publish([("a", torch.ones(100))])
    gone.close()
    with pytest.raises(EngineDeadError, match=r"closed early.*publisher is gone"):
        reader.read(source, server.serve(source))


def test_a_lost_machine_is_named(publisher: SharedMemoryPublisher, server: WeightServer, reader: WeightReader):
    source = publisher.publish([("a", torch.ones(100))])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused = listener.getsockname()[1]
    with pytest.raises(EngineDeadError, match=f"weights from 127.0.0.1:{unused}"):
        reader.read(source, replace(server.serve(source), port=unused))
