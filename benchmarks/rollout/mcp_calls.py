"""CPU time of a call of an MCP tool, in the worker and in the server.

    python -m benchmarks.rollout.mcp_calls [--calls 4096] [--concurrent 256] [--rounds 3] [--json FILE]

The worker's side is the executor of tools with one shared server, as in an agent-loop worker; the server is written with the
SDK, and answers at once. *stdio* starts it as a child process, *HTTP* reaches it on loopback. CPU time of all threads of each
process, per call; medians over rounds.
"""

import asyncio
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import psutil
import uvloop
from mcp.server import MCPServer

from agentrl.tools.base import Episode
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import Deadline, ToolCall
from benchmarks.judge import report

_COMMAND = (sys.executable, "-m", "benchmarks.rollout.mcp_calls", "serve")


def serve(port: int | None) -> None:
    """Run a server with one tool, on stdio or on a port."""
    server = MCPServer("benchmark", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", port=port)


@contextlib.contextmanager
def served(transport: str) -> Iterator[str]:
    """Yield the keys of a server in the tool YAML."""
    if transport == "stdio":
        yield f"command: {list(_COMMAND)}"
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with Popen([*_COMMAND, str(port)]) as process:
        try:
            _wait_for(port)
            yield f"url: 'http://127.0.0.1:{port}/mcp'"
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


async def measure(keys: str, *, num_calls: int, num_concurrent: int) -> tuple[float, float]:
    """Return the CPU time of a call in milliseconds, in this process and in the server.

    Raises:
        RuntimeError: a call was not answered as it should.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tools.yaml"
        file.write_text(f"tools: [{{type: mcp, {keys}}}]")
        executor = ToolExecutor(build_tools(with_server_tools(load_tool_file(file))), timeout_s=600)
    await executor.start()
    async with contextlib.aclosing(executor):
        turn = asyncio.Semaphore(num_concurrent)

        async def call(number: int) -> None:
            async with turn:
                wanted = ToolCall(call_id="0", name="add", arguments={"a": number, "b": 1})
                episode = Episode(episode_id=f"{number}", prompt_id="p")
                [result] = await executor.execute([wanted], episode, deadline=Deadline.after(600))
                if result.text != str(number + 1):
                    raise RuntimeError(f"call {number}: {result}")

        await asyncio.gather(*map(call, range(num_concurrent)))  # connections open
        servers = [p for p in psutil.Process().children() if "benchmarks.rollout.mcp_calls" in p.cmdline()]
        before = time.process_time(), _cpu_s(servers)
        await asyncio.gather(*map(call, range(num_calls)))
        in_worker, in_server = time.process_time() - before[0], _cpu_s(servers) - before[1]
    return 1000 * in_worker / num_calls, 1000 * in_server / num_calls


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(taken.user + taken.system for taken in times)


def main() -> int:
    """Measure and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--calls", type=int, default=4096)
    parser.add_argument("--concurrent", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    report.print_machine()
    rows: list[report.Row] = []
    for transport in ("stdio", "HTTP"):
        with served(transport) as keys:
            rounds = [
                uvloop.run(measure(keys, num_calls=words.calls, num_concurrent=words.concurrent))
                for _ in range(words.rounds)
            ]
        in_worker, in_server = (statistics.median(side) for side in zip(*rounds, strict=True))
        rows.append({"transport": transport, "worker ms": in_worker, "server ms": in_server})
    report.print_table(f"CPU time of a call, {words.concurrent} at once", rows)
    report.write_json(words.json, {"medians": rows})
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        sys.exit(main())
