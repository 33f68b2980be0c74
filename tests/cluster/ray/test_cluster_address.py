"""An address of a Ray cluster that is wrong: refused with its key and the way out, before Ray tries for minutes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError


def load(address: str) -> str | None:
    return load_run_config("configs/demo.yaml", [f"cluster.address={json.dumps(address)}"]).config.cluster.address


@pytest.mark.parametrize(
    "address", ["", "foo", "local", "10.0.0.1", "127.0.0.1:abc", ":6379", "h:0", "h:65536", "ray://h:10001", "h:1:2"]
)
def test_what_is_no_address_of_a_cluster_is_refused_with_its_key(address: str):
    with pytest.raises(ConfigError, match=r"command line: `cluster\.address` is .*must be `host:port`"):
        load(address)


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head.example.org:65535"])
def test_an_address_of_a_cluster_is_taken(address: str):
    assert load(address) == address


JOIN = "import sys; from agentrl.cluster.ray.runtime import _join; _join(sys.argv[1], {})"


@pytest.mark.slow  # Ray's one try takes 40 s
def test_what_listens_and_is_no_ray_is_refused_with_the_key_after_one_try():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", JOIN, address]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert f"ConfigError: `cluster.address` is `{address}`, and no Ray cluster can be joined there" in refused.stderr


@pytest.mark.slow  # Ray tries for 20 s
@pytest.mark.ray
def test_a_cluster_that_needs_a_token_refuses_a_command_without_it_with_the_way_out(local_ray: Path):
    address = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
        "0"  # else `127.0.0.1` stands for an interface, where this Ray is not
    )
    command = [sys.executable, "-c", JOIN, address]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert f"ConfigError: `cluster.address` is `{address}`, and no Ray cluster can be joined there: " in refused.stderr
    assert "Authentication token is missing or incorrect" in refused.stderr
    assert "`RAY_AUTH_MODE=token` on every machine, also for this command" in refused.stderr
    joined = subprocess.run(command, env=environment | {"RAY_AUTH_MODE": "token"}, capture_output=True, text=True)
    assert joined.returncode == 0, joined.stderr
