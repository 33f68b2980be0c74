"""The dashboard beside a run: it serves, ends with the run, and never ends the run."""

import logging
import re
import socket
import time
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.observability.dashboard_process import dashboard_process
from tests.processes import children_since, still_running


def wait_for_message(caplog: pytest.LogCaptureFixture) -> str:
    until = time.monotonic() + 100
    while not caplog.messages and time.monotonic() < until:
        time.sleep(0.05)
    return caplog.messages[0]


def test_it_serves_at_the_logged_address_and_ends_with_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    (tmp_path / "config.yaml").write_text("{}")
    others = psutil.Process().children()
    with dashboard_process(tmp_path, ObservabilitySection(dashboard_port=0)):
        [process] = children_since(others)
        message = wait_for_message(caplog)
        assert re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/", message)
        with urlopen(message.removeprefix("dashboard: ")) as page:
            assert b"<html" in page.read()
    assert still_running([process]) == []
    assert caplog.messages == [message]


def test_a_taken_port_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "config.yaml").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with dashboard_process(tmp_path, ObservabilitySection(dashboard_port=port)):
            message = wait_for_message(caplog)
    assert message.startswith("dashboard: ended with status 2 (error: --host 127.0.0.1 --port ")
    assert message.endswith("; the run goes on")


def test_without_a_port_there_is_none(tmp_path: Path):
    others = psutil.Process().children()
    with dashboard_process(tmp_path, ObservabilitySection()):
        assert children_since(others) == []
