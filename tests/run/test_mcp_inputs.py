"""Tools of MCP servers as inputs of a run, which a resume compares; the server is a script without the SDK."""

import sys
from pathlib import Path

import pytest

from agentrl.checkpoints.contents import RunState
from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.run.plan import prepare

SERVER = """
import json, sys
from pathlib import Path

description = Path("description").read_text()
tool = {"name": "find", "description": description, "inputSchema": {"type": "object", "properties": {}}}
results = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}},
    "tools/list": {"tools": [tool]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = results.get(message["method"])
        part = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **part}), flush=True)
"""


def start(folder: Path, *overrides: str) -> RunDirectory:
    words = [f"run.dir={folder / 'run'}", f"tool_config_path={folder / 'tools.yaml'}", *overrides]
    directory = prepare(load_run_config("configs/demo.yaml", words)).directory
    directory.close()
    return directory


def test_other_tools_of_an_mcp_server_are_refused_unless_accepted_and_a_finished_run_asks_none(tmp_path: Path) -> None:
    server, description = tmp_path / "server.py", tmp_path / "description"
    (tmp_path / "tools.yaml").write_text(f"tools: [{{type: mcp, command: [{sys.executable}, server.py]}}]")
    server.write_text(SERVER)
    description.write_text("Find a book.")
    run = start(tmp_path)
    run.checkpoints.begin(4)
    run.checkpoints.commit(RunState(step=4))
    start(tmp_path)
    description.write_text("Find a film.")
    with pytest.raises(ConfigError, match=r"other content from `MCP tool find`, .*accept_code_changes=true"):
        start(tmp_path)
    start(tmp_path, "run.accept_code_changes=true")
    run = start(tmp_path)  # what was accepted is the run's now
    run.finish({"num_steps": 60})
    server.unlink()
    assert start(tmp_path).finished
    server.write_text(SERVER)
    description.write_text("Find a song.")
    with pytest.raises(ConfigError, match="other content from `MCP tool find`"):
        start(tmp_path, "run.num_steps=70")
