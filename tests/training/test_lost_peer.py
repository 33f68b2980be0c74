"""Detection of a lost rank, and its distinction from other errors."""

import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from agentrl.training.parallel import Store, is_lost_peer, open_store

OTHER_RANK = """
import datetime, os, sys, torch
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=datetime.timedelta(minutes=4))
dist.all_reduce(torch.ones(1))
os._exit(1)
"""


@pytest.mark.slow
def test_the_end_of_another_ranks_process_is_a_lost_peer():
    store = open_store("127.0.0.1")
    other = subprocess.Popen([sys.executable, "-c", OTHER_RANK, str(store.port)])
    dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(minutes=4))
    try:
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0
        other.wait(timeout=250)
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(total)
    finally:
        dist.destroy_process_group()
    assert is_lost_peer(raised.value)


def test_a_missing_store_is_a_lost_peer():
    store = open_store("127.0.0.1")
    port = store.port
    del store
    with pytest.raises(dist.DistNetworkError) as raised:
        Store("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
    assert is_lost_peer(raised.value)


def test_a_lost_peer_is_found_in_the_causes_of_an_error_and_a_bug_is_none():
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:41213")
    outer = ValueError("cannot gather")
    outer.__cause__ = lost
    assert is_lost_peer(outer)
    assert not is_lost_peer(RuntimeError("shapes [3] and [4] do not match"))
    assert not is_lost_peer(BrokenPipeError("Broken pipe"))
