"""Addresses that a run on one machine listens on: no other machine can reach them."""

import ipaddress
from pathlib import Path

import psutil
import ray

from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.training.parallel import open_store
from tests.cluster.workers import PlainWorker


def listening_on(process: psutil.Process) -> set[str]:
    addresses = {
        connection.laddr.ip for connection in process.net_connections("inet") if connection.status == psutil.CONN_LISTEN
    }
    return {address.removeprefix("::ffff:") for address in addresses}


async def test_every_process_of_a_local_ray_listens_on_loopback_alone(local_ray: Path):
    [worker] = spawn(PlainWorker, ResourcePool(num_processes=1, num_cpus=0.1), {}, "plain", max_concurrency=2)
    await worker.until_placed()
    assert ray.nodes()[0]["NodeManagerAddress"] == "127.0.0.1"
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    by_process = {process.pid: listening_on(process) for process in processes if process.is_running()}
    addresses = set().union(*by_process.values())
    assert len([pid for pid, own in by_process.items() if own]) >= 3, "this process, the GCS, the raylet"
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), by_process
    worker.kill()


def test_the_token_of_ray_can_be_read_by_its_user_alone(local_ray: Path):
    token = Path.home() / ".ray" / "auth_token"
    assert not token.exists() or token.stat().st_mode & 0o077 == 0


def test_the_store_at_which_ranks_meet_listens_where_the_others_know_it():
    store = open_store("127.0.0.1")
    connections = psutil.Process().net_connections("inet")
    [address] = [
        connection.laddr.ip
        for connection in connections
        if connection.laddr.port == store.port and connection.status == psutil.CONN_LISTEN
    ]
    assert address == "127.0.0.1"
