"""Servers that others have published, which speak an older protocol by an older SDK."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import ToolResult, ToolStatus
from tests.tools.test_mcp_tool import ask, started

PACKAGES = (
    "mcp==1.30.0",
    "mcp-server-time==2026.10.10",
    "mcp-server-git==2026.10.10",
    "mcp-server-sqlite==2025.4.25",
    "mcp-server-calculator==0.2.1",
)


@pytest.fixture(scope="module")
def packages(pytestconfig: pytest.Config) -> Path:
    """A folder with the servers and their SDK, which is not that of the tests; it is kept for later runs."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("mcp_servers") / "-".join(PACKAGES)
    if not folder.exists():
        fresh = folder.with_name(f"{os.getpid()}.part")
        words = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", "--target", str(fresh), *PACKAGES]
        installed = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            reason = f"the servers cannot be installed: {installed.stderr[-300:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)
        fresh.rename(folder)
    return folder


def entry(packages: Path, module: str, *words: str) -> str:
    command = ["python", "-c", f"import {module}; {module}.main()", *words]
    return f"  - {{type: mcp, command: {command}, env: {{PYTHONPATH: {packages}}}}}\n"


async def convert(executor: ToolExecutor, zone: str) -> ToolResult:
    return await ask(executor, "convert_time", source_timezone="UTC", time="12:00", target_timezone=zone)


@pytest.mark.slow
async def test_published_servers_of_the_older_protocol_answer(packages: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "repository")], check=True)  # noqa: ASYNC221
    file = tmp_path / "tools.yaml"
    file.write_text(
        "tools:\n"
        + entry(packages, "mcp_server_time", "--local-timezone", "UTC")
        + entry(packages, "mcp_server_git", "--repository", str(tmp_path / "repository"))
        + entry(packages, "mcp_server_sqlite", "--db-path", str(tmp_path / "data.db"))
        + entry(packages, "mcp_server_calculator")
    )
    async with started(with_server_tools(load_tool_file(file)), timeout_s=60) as executor:
        assert len(executor.schemas) > 15
        assert '"time_difference": "+9.0h"' in (await convert(executor, "Asia/Tokyo")).text
        status = await ask(executor, "git_status", repo_path=str(tmp_path / "repository"))
        assert "No commits yet" in status.text
        await ask(executor, "create_table", query="CREATE TABLE words (word TEXT)")
        await ask(executor, "write_query", query="INSERT INTO words VALUES ('actor')")
        assert "actor" in (await ask(executor, "read_query", query="SELECT * FROM words")).text
        assert (await ask(executor, "calculate", expression="6 * 7")).text == "42"
        refused = await convert(executor, "Moon/Sea")
        assert (refused.status, refused.text[:9]) == (ToolStatus.ERROR, "failure: ")
