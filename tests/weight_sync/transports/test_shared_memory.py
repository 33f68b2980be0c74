import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher, read_tensors


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


def memory_bytes() -> int:
    shared = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(shared.split()[1]) * 1024


def in_another_process(source: WeightSource) -> str:
    code = (
        "import sys, pickle, agentrl.weight_sync.transports.shared_memory as s\n"
        "source = pickle.loads(bytes.fromhex(sys.stdin.read()))\n"
        "print({name: tensor.float().sum().item() for name, tensor in s.read_tensors(source)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(source).hex(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_tensors_are_read_as_they_were_published(publisher: SharedMemoryPublisher):
    weights = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "transposed": torch.randn(4, 6).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "whole": torch.arange(9),
    }
    read = dict(read_tensors(publisher.publish(weights.items())))
    assert list(read) == list(weights)
    for name, tensor in weights.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_another_process_reads_the_weights(publisher: SharedMemoryPublisher):
    source = publisher.publish([("a", torch.ones(10)), ("b", torch.full((2, 2), 3.0))])
    assert in_another_process(source) == "{'a': 10.0, 'b': 12.0}"


def test_writing_to_a_read_tensor_does_not_reach_the_publisher(publisher: SharedMemoryPublisher):
    source = publisher.publish([("a", torch.zeros(4))])
    next(read_tensors(source))[1].fill_(7.0)
    assert next(read_tensors(source))[1].tolist() == [0.0] * 4


def num_maps() -> int:
    return Path("/proc/self/maps").read_text().count("agentrl-weights")


def test_two_hundred_versions_leak_neither_memory_nor_descriptors_nor_maps(publisher: SharedMemoryPublisher):
    weights = [(f"w{number}", torch.randn(256, 1024)) for number in range(4)]  # 4 MiB
    receiver = WeightReceiver(torch.device("cpu"))
    received = {name: torch.empty_like(tensor) for name, tensor in weights}

    def push() -> WeightSource:
        source = publisher.publish(weights)
        receiver.prepare(source)
        for name, tensor in receiver.tensors(source):
            received[name].copy_(tensor)
        return source

    first = push()
    descriptors, memory, maps = set(os.listdir("/proc/self/fd")), memory_bytes(), num_maps()
    files = {name for name in os.listdir("/dev/shm") if "agentrl-weights" in name}
    addresses = {push().address for _ in range(200)}
    assert addresses == {first.address}
    assert all(torch.equal(received[name], tensor) for name, tensor in weights)
    assert set(os.listdir("/proc/self/fd")) <= descriptors, "descriptors of other tests may be closed meanwhile"
    assert num_maps() <= maps
    assert {name for name in os.listdir("/dev/shm") if "agentrl-weights" in name} == files
    assert memory_bytes() - memory < 3 * first.size_bytes
    assert os.stat(first.address).st_size == first.size_bytes


def test_a_lost_publisher_is_named(publisher: SharedMemoryPublisher):
    other = SharedMemoryPublisher()
    source = other.publish([("a", torch.ones(3))])
    other.close()
    with pytest.raises(EngineError, match="the publishing process is gone"):
        next(read_tensors(source))


def test_a_descriptor_reused_for_another_file_is_refused(tmp_path: Path):
    other = SharedMemoryPublisher()
    source = other.publish([("a", torch.ones(3))])
    other.close()
    number = int(source.address.rsplit("/", 1)[1])
    impostor = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    os.dup2(impostor, number)
    try:
        with pytest.raises(EngineError, match="not the publisher"):
            next(read_tensors(source))
    finally:
        os.close(number)
        if number != impostor:
            os.close(impostor)


def test_closing_a_publisher_twice_leaves_a_reused_descriptor_open(tmp_path: Path):
    publisher = SharedMemoryPublisher()
    source = publisher.publish([("a", torch.ones(3))])
    publisher.close()
    number = int(source.address.rsplit("/", 1)[1])
    other = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    os.dup2(other, number)
    publisher.close()
    os.fstat(number)  # raises if it is closed
    for descriptor in {other, number}:
        os.close(descriptor)


def test_a_version_replaced_by_a_smaller_one_is_refused(publisher: SharedMemoryPublisher):
    source = publisher.publish([("a", torch.ones(1000))])
    publisher.publish([("a", torch.ones(10))])
    with pytest.raises(EngineError, match="were announced"):
        next(read_tensors(source))


@pytest.mark.slow
def test_a_killed_publisher_leaves_nothing_behind():
    code = (
        "import os, signal, torch, agentrl.weight_sync.transports.shared_memory as s\n"
        "p = s.SharedMemoryPublisher()\n"
        "print(p.publish([('a', torch.ones(1000))]).address, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9
    assert not os.path.exists(done.stdout.strip())
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "agentrl" in name]
