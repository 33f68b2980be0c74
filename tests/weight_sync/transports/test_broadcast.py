"""Broadcast over gloo, with a thread for each process; `test_gpu_transports.py` has NCCL on GPUs."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from agentrl.errors import EngineDeadError, EngineError
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.rendezvous import Rendezvous
from agentrl.weight_sync.tensor_layout import lay_out, size_of
from agentrl.weight_sync.transports.broadcast import BroadcastGroup, BroadcastReceiver, BroadcastSender, store_at

CPU = torch.device("cpu")
BUCKET_BYTES = 256


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def weights(seed: int) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {f"w{i}": torch.randn(7, 1 + 5 * i, generator=draws) for i in range(6)}


def offer(store: TCPStore, serial: int, *receivers: str) -> WeightSource:
    """Announce bfloat16, though the weights are float32."""
    specs = lay_out({name: (tensor.shape, torch.bfloat16) for name, tensor in weights(0).items()})
    return WeightSource(
        transport=Transport.BROADCAST,
        address=f"127.0.0.1:{store.port}",
        size_bytes=size_of(specs),
        tensors=specs,
        publisher="actor",
        serial=serial,
        receivers=receivers,
    )


def test_an_nccl_group_raises_when_a_peer_is_lost_instead_of_ending_the_process(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
):
    """The constructor reads the variable: with it, torch arms no watchdog, and `wait` blocks."""
    seen: list[str | None] = []

    class Nccl:
        class Options:
            _timeout = timedelta(0)

        def __init__(self, *arguments: object) -> None:
            seen.append(os.environ.get("TORCH_NCCL_BLOCKING_WAIT"))
            raise InterruptedError("no GPU here")

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    for before in (None, "0"):
        monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
        if before is not None:
            monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", before)
        with pytest.raises(InterruptedError):
            BroadcastGroup(torch.device("cuda"), 1.0).of(offer(store, 1, "engine 0/0"), 0, store)
        assert os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == before, "the actor's own groups are unaffected"
    assert seen == ["1", "1"]


def received(receiver: BroadcastReceiver, source: WeightSource, me: str) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in receiver.tensors(source, me)}


def test_all_receivers_get_all_weights_in_the_announced_type_and_the_group_is_reused(store: TCPStore):
    names = ("engine 0/0", "engine 0/1", "engine 1/0")
    sender = BroadcastSender(store, CPU, bucket_bytes=BUCKET_BYTES)
    receivers = [BroadcastReceiver(CPU, bucket_bytes=BUCKET_BYTES) for _ in names]
    groups = []
    for serial in (1, 2):
        source, sent = offer(store, serial, *names), weights(serial)
        with ThreadPoolExecutor() as threads:
            futures = [threads.submit(received, *pair) for pair in zip(receivers, [source] * 3, names, strict=True)]
            sender.send(source, sent.items())
            for future in futures:
                weights_received = future.result()
                assert list(weights_received) == list(sent)
                assert all(torch.equal(tensor, sent[name].bfloat16()) for name, tensor in weights_received.items())
        groups.append(sender._group._group)
    assert groups[0] is groups[1]
    sender.close()


def test_a_restarted_actor_is_reached_at_its_new_store(store: TCPStore):
    receiver = BroadcastReceiver(CPU, bucket_bytes=BUCKET_BYTES)
    # The first actor's store is gone with it.
    for seed, its_store in ((1, TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)), (2, store)):
        source = replace(offer(its_store, 1, "engine 0/0"), publisher=f"actor at {its_store.port}")
        sent = weights(seed)
        sender = BroadcastSender(its_store, CPU, bucket_bytes=BUCKET_BYTES, timeout_s=20.0)
        with ThreadPoolExecutor() as threads:
            future = threads.submit(received, receiver, source, "engine 0/0")
            sender.send(source, sent.items())
        assert all(torch.equal(tensor, sent[name].bfloat16()) for name, tensor in future.result().items())
        sender.close()
        del sender, its_store


def test_a_missing_receiver_is_named_to_the_sender_and_to_the_others(store: TCPStore):
    source = offer(store, 1, "engine 0/0", "engine 1/0")
    sender = BroadcastSender(store, CPU, timeout_s=1.0)
    with ThreadPoolExecutor() as threads:
        future = threads.submit(received, BroadcastReceiver(CPU), source, "engine 0/0")
        Rendezvous(store_at(source.address, 60), "actor/1", me="the test").wait("arrival", ["engine 0/0"])
        with pytest.raises(EngineError, match="missing: engine 1/0"):
            sender.send(source, weights(1).items())
        with pytest.raises(EngineError, match="missing: engine 1/0"):
            future.result()


def test_a_missing_sender_is_named(store: TCPStore):
    source = replace(offer(store, 1, "engine 0/0"), receiver="engine 0")
    with pytest.raises(EngineError, match="missing: rank 0 of the actor"):
        received(BroadcastReceiver(CPU, timeout_s=0.5), source, "engine 0/0")


def test_a_receiver_lost_half_way_is_named(store: TCPStore):
    source, arrived = offer(store, 1, "engine 0/0"), []

    def leave_early() -> None:
        tensors = BroadcastReceiver(CPU, bucket_bytes=BUCKET_BYTES).tensors(source, "engine 0/0")
        arrived.append(next(tensors))
        tensors.close()  # pyright: ignore[reportAttributeAccessIssue]

    with ThreadPoolExecutor() as threads:
        leaving = threads.submit(leave_early)
        with pytest.raises(EngineError, match=r"lost: engine 0/0|missing: engine 0/0"):
            BroadcastSender(store, CPU, bucket_bytes=BUCKET_BYTES, timeout_s=5.0).send(source, weights(1).items())
        leaving.result()
    assert len(arrived) == 1


def test_a_receiver_lost_before_the_group_is_formed_is_named(store: TCPStore):
    source = offer(store, 1, "engine 0/0")
    Rendezvous(store, "actor/1", me="engine 0/0").publish("arrival")
    with pytest.raises(EngineError, match="lost: engine 0/0"):
        BroadcastSender(store, CPU, timeout_s=1.0).send(source, weights(1).items())


def test_a_sender_lost_before_the_group_is_formed_is_named(store: TCPStore):
    source = offer(store, 1, "engine 0/0")
    Rendezvous(store, "actor/1", me="rank 0 of the actor").publish("word", b"come")
    with pytest.raises(EngineError, match="`engine 0/0` lost rank 0 of the actor"):
        received(BroadcastReceiver(CPU, timeout_s=1.0), source, "engine 0/0")


def test_an_engine_with_a_mixture_of_weights_is_dead(store: TCPStore):
    """The sender's weights do not match its announcement, as if a byte had changed on the way."""
    source = replace(offer(store, 1, "engine 0/0"), receiver="engine 0")
    receiver = WeightReceiver(CPU)
    with ThreadPoolExecutor() as threads:
        future = threads.submit(lambda: list(receiver.tensors(source)))
        sender = BroadcastSender(store, CPU, timeout_s=5.0)
        with pytest.raises(ValueError, match="`w1` came where `w0` was announced"):
            sender.send(source, list(weights(1).items())[1:])
        sender.close()
        with pytest.raises(EngineDeadError, match="did not arrive whole"):
            future.result(timeout=240)
