"""The command line: `python -m code_judge_server [--port 8088] --require-isolation D`; `--help` names every setting.

It prints to stdout, when it is ready, the line `listening on http://ADDRESS:PORT`, by which a parent that asked for port 0
learns the port. Warnings go to stderr.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp

from code_judge_server.app import create_app
from code_judge_server.process_executor import ProcessExecutor
from code_judge_server.sandbox import ProgramLimits
from code_judge_server.schemas import IsolationTier
from code_judge_server.settings import Settings

logger = logging.getLogger("code_judge_server")

_MIB = 1024 * 1024
_EXIT_REFUSED = 2
_FORCED_EXIT_AFTER_S = 5.0


def main() -> int:
    """Serve until told to stop; return the exit code, 2 when the server refuses to start."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = CliApp.run(Settings)
        _refuse_weak_isolation(settings, ProcessExecutor.tier)
        listener = _listen(settings.host, settings.port)
    except (ValidationError, SettingsRefusedError) as error:
        sys.stderr.write(f"code judge: {_one_line(error)}\n")
        return _EXIT_REFUSED
    server = _JudgeServer(settings, listener)
    if settings.exit_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, name="stdin-watch", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped in good order
        server.run(sockets=[listener])
    return 0 if server.started else 1


class SettingsRefusedError(Exception):
    """These settings cannot be served on this machine."""


def _refuse_weak_isolation(settings: Settings, tier: IsolationTier) -> None:
    if tier > settings.require_isolation:
        raise SettingsRefusedError(
            f"require_isolation: tier {settings.require_isolation} is asked for, and this server reaches only {tier}, which "
            "does not isolate programs from this machine. Where they may be trusted with it, name it: --require-isolation D"
        )
    if tier is IsolationTier.D and not settings.is_loopback:
        raise SettingsRefusedError(
            f"host: isolation tier D is for loopback only, not for `{settings.host}`. Use --host 127.0.0.1"
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsRefusedError(
            f"port: cannot listen on {host}:{port}: {error}. Name another --port, or 0"
        ) from error


class _JudgeServer(uvicorn.Server):
    """Uvicorn with our application, which announces itself once it is ready."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        compile_limits = ProgramLimits(
            cpu_time_s=settings.compile_time_s,
            wall_time_s=settings.compile_time_s,
            memory_bytes=settings.compile_memory_mb * _MIB,
            output_bytes=settings.max_output_bytes,
        )
        self._executor = ProcessExecutor(
            num_slots=settings.slot_count,
            compile_limits=compile_limits,
            max_tasks=settings.max_tasks,
            file_bytes=settings.max_file_mb * _MIB,
            work_dir=settings.work_dir,
        )
        self._settings = settings
        self._address = listener.getsockname()
        super().__init__(
            uvicorn.Config(
                create_app(settings, self._executor),
                loop="uvloop",
                lifespan="on",
                log_level="warning",
                access_log=False,
                timeout_keep_alive=75,  # longer than clients keep theirs, so that it is not we who close one in use
                timeout_graceful_shutdown=1,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        tier = self._executor.tier
        if tier is IsolationTier.D:
            logger.warning(
                "isolation tier D: programs run with this server's rights, limited in time, memory and output only"
            )
        host = f"[{self._address[0]}]" if ":" in self._address[0] else self._address[0]
        sys.stdout.write(f"listening on http://{host}:{self._address[1]}\n")
        sys.stdout.write(f"code judge: isolation tier {tier}, {self._settings.slot_count} slots\n")
        sys.stdout.flush()


def _stop_at_end_of_stdin() -> None:
    """Ask the server to stop once nobody holds the other end of stdin; end the process if it cannot even do that."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_FORCED_EXIT_AFTER_S)
    os._exit(1)  # the slots see their sockets close, and clean up


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            ": ".join(filter(None, [".".join(map(str, item["loc"])), item["msg"]])) for item in error.errors()
        )
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
