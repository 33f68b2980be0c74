"""Shows runs in a browser: `python -m agentrl.dashboard RUN_DIR [RUN_DIR ...] [--host 127.0.0.1] [--port 8600]`.

It reads files only: a run that goes on, one that is finished and one that crashed open alike, on any machine that sees the
folder. On another host than a loopback address it makes a token, and the printed address has it.
"""

import argparse
import contextlib
import secrets
import socket
import sys
from pathlib import Path

import uvicorn

from agentrl.config.schema.addresses import is_loopback
from agentrl.dashboard.app import Dashboard
from agentrl.dashboard.runs import open_runs
from agentrl.errors import ConfigError

_DEFAULT_PORT = 8600
_CLOSE_S = 1
"""Time that open requests get at the end."""


class _Server(uvicorn.Server):
    """Server that ends the streams of its pages before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the server."""
        await self._dashboard.live.close()
        await super().shutdown(sockets)


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.dashboard", description="Show runs in a browser.")
    parser.add_argument("run_dir", type=Path, nargs="+", help="folder of a run; several are compared")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; not a loopback address: with a token"
    )
    parser.add_argument("--port", type=int, default=_DEFAULT_PORT, help="0: any free one (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        runs = open_runs(arguments.run_dir)
        listener = _bound(arguments.host, arguments.port)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    token = None if is_loopback(arguments.host) else secrets.token_urlsafe(24)
    dashboard = Dashboard(runs)
    config = uvicorn.Config(
        dashboard.build(token=token), log_level="warning", access_log=False, timeout_graceful_shutdown=_CLOSE_S
    )
    print(f"dashboard: {_address(listener, token)}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal once more when all is closed
        _Server(config, dashboard).run(sockets=[listener])
    return 0


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: {error}. Name another port, or 0 for any free one") from error
    return listener


def _address(listener: socket.socket, token: str | None) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


if __name__ == "__main__":
    sys.exit(main())
