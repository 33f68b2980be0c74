"""Refusals of URLs where a run cannot keep its files, in one line each, at `--check` and at the start."""

import re
import socket
from pathlib import Path

import pytest

from agentrl.checkpoints.object_store import open_store
from agentrl.checkpoints.store import CheckpointStore
from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError
from agentrl.run.plan import prepare
from agentrl.run.preflight.check import CheckLevel, check


def refused(url: str) -> str:
    """Return what a run is told that would keep its checkpoints there."""
    with pytest.raises(ConfigError) as raised:
        CheckpointStore(url)
    message = str(raised.value)
    assert message.startswith(f"checkpoint.dir: {url} ")
    assert "\n" not in message
    return message


def test_a_url_that_nothing_can_reach_is_one_clear_line():
    assert "cannot be reached: ValueError: Protocol not known: nowhere" in refused("nowhere://bucket")


@pytest.fixture
def nobody() -> str:
    """Give the URL of a server that is not there; its package connects when it is made."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"ftp://127.0.0.1:{bound.getsockname()[1]}/runs"


async def test_a_server_that_is_not_there_is_reported_by_a_run_and_by_its_full_check(nobody: str, tmp_path: Path):
    message = re.escape(f"checkpoint.dir: {nobody} cannot be reached: ConnectionRefusedError")
    loaded = load_run_config("configs/demo.yaml", [f"checkpoint.dir={nobody}", f"run.dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=message):
        prepare(loaded)
    with pytest.raises(ConfigError, match=message):
        await check(loaded, CheckLevel.FULL)
    await check(loaded, CheckLevel.STATIC)  # which asks nobody


def test_a_package_that_lacks_arguments_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"--to: jupyter://x cannot be reached: TypeError: .* 'url'\. Check"):
        open_store("jupyter://x", key="--to")
