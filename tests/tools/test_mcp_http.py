"""Tools of a real MCP server over streamable HTTP on loopback."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentrl.errors import ConfigError, RolloutError
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import ToolStatus
from tests.tools.test_mcp_tool import ask, started

SERVER = Path(__file__).with_name("mcp_server.py")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"TOKEN": "s3cret"}
    with subprocess.Popen([sys.executable, str(SERVER), str(port)], env=environment) as process:
        try:
            wait_for(port)
            yield process
        finally:
            process.kill()


def wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 401
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server does not answer")


def tools_file(folder: Path, port: int, *, token: str) -> Path:
    file = folder / "tools.yaml"
    header = f"headers: {{Authorization: Bearer {token}}}"
    file.write_text(f"tools: [{{type: mcp, url: 'http://127.0.0.1:{port}/mcp', {header}}}]")
    return file


@pytest.mark.slow
async def test_calls_go_over_http_and_a_lost_server_is_reached_again_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with serving(port) as server:
        with pytest.raises(ConfigError, match="HTTP status 401"):
            with_server_tools(load_tool_file(tools_file(tmp_path, port, token="wrong")))
        configs = with_server_tools(load_tool_file(tools_file(tmp_path, port, token="s3cret")))
        async with started(configs, timeout_s=20) as executor:
            results = await asyncio.gather(*(ask(executor, "add", str(a), a=a, b=1, after_s=0.1) for a in range(150)))
            assert [result.text for result in results] == [str(a + 1) for a in range(150)]
            assert (await ask(executor, "fail")).status is ToolStatus.ERROR
            assert len((await ask(executor, "many", characters=2 << 20)).text) > 1 << 17
            log = tmp_path / "log"
            assert (await ask(executor, "wait", limit_s=1.0, seconds=60, file=str(log))).status is ToolStatus.TIMEOUT
            async with asyncio.timeout(20):
                while not log.exists() or log.read_text() != "cancelled":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            server.kill()
            server.wait()
            with pytest.raises(RolloutError, match="MCP server `http:"):
                await ask(executor, "add", limit_s=5.0, a=1, b=2)
            with serving(port):
                assert (await ask(executor, "add", a=1, b=2)).text == "3"
