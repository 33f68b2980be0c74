"""One real service for all tests that need one: the demo's policy, tools, judge and reward."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from aiohttp.test_utils import unused_port

from tests.runners.run_process import RunProcess, running


@dataclass(frozen=True)
class RealService:
    """A service in a process of its own."""

    run: RunProcess
    url: str
    noted: Path
    """Folder of `NotedTool`."""


def wait_until_ready(run: RunProcess, url: str, *, timeout_s: float = 200) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        assert run.process.poll() is None, run.output()
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the service was not ready in {timeout_s} s: {run.output()}")


@pytest.fixture(scope="session")
def real_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    port, folder = unused_port(), tmp_path_factory.mktemp("service")
    (noted := folder / "noted").mkdir()
    tools = yaml.safe_load(Path("tool_configs/python_tool_config.yaml").read_text())
    tools["tools"][0]["class_name"] = "tests.serve.noted_tool.NotedTool"
    tools["tools"][0]["config"]["folder"] = str(noted)
    (folder / "tools.yaml").write_text(yaml.safe_dump(tools, sort_keys=False))  # another order is another prompt
    words = (f"service.port={port}", f"tool_config_path={folder / 'tools.yaml'}")
    with running(folder / "run", *words, module="agentrl.serve") as run:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(run, url)
        yield RealService(run, url, noted)


@pytest.fixture
def policy() -> Path:
    return Path("examples/arithmetic/policy").absolute()
