"""The command line: `python -m code_judge_server [--port 8088]`; `--help` names every setting.

When it is ready it prints the line `listening on http://ADDRESS:PORT` to stdout, from which a parent that asked for port 0
reads the port, then its isolation tier with the canaries, its slots and its limits. Warnings go to stderr.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError

from code_judge_server import __version__
from code_judge_server.app import create_app
from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Canary, IsolationTier
from code_judge_server.serving import JudgeServer, TooFewDescriptorsError, most_connections
from code_judge_server.settings import MIB, Settings, unknown_variables
from code_judge_server.settings_table import settings_table
from code_judge_server.tier_choice import IsolationRefusedError, choose_executor

logger = logging.getLogger("code_judge_server")

_EXIT_REFUSED = 2
_FORCED_EXIT_AFTER_S = 5.0
_MEANING = {
    IsolationTier.A: "namespaces and cgroups",
    IsolationTier.B: "user namespaces, no cgroup",
    IsolationTier.C: "Landlock, seccomp and rlimits, no namespaces",
    IsolationTier.D: "none: programs have this server's rights",
}
_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def main() -> int:
    """Serve until stopped; return the exit code, 2 when the server refuses to start."""
    if ".." in sys.executable.split("/"):
        _restart_by_plain_path()
    if not {"-h", "--help"}.isdisjoint(sys.argv[1:]):
        sys.stdout.write(settings_table())
        return 0
    try:
        settings = CliApp.run(Settings)
        _configure_logging(settings.log_format, settings.log_level)
        for name in unknown_variables(os.environ):
            logger.warning("environment: %s is not a setting and has no effect. `--help` lists all settings", name)
        num_connections = most_connections(settings)
        listener = _listen(settings.host, settings.port)
        executor = choose_executor(settings)
    except (
        ValidationError,
        SettingsError,
        TooFewDescriptorsError,
        AddressRefusedError,
        IsolationRefusedError,
    ) as error:
        sys.stderr.write(f"code judge: {_one_line(error)}\n")
        return _EXIT_REFUSED
    address = listener.getsockname()
    server = JudgeServer(
        create_app(settings, executor),
        settings,
        most_connections=num_connections,
        on_ready=lambda: _announce(settings, executor, address),
    )
    if settings.exit_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, args=(server,), name="stdin-watch", daemon=True).start()
    server.run(sockets=[listener])
    return 0 if server.started or server.should_exit else 1


class _JsonLines(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and whatever `extra` it was logged with."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN_ATTRIBUTES}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _configure_logging(log_format: Literal["text", "json"], log_level: str) -> None:
    """Send log lines to stderr, as text or as one JSON object each; none has code or output of a program."""
    for unused in ("logThreads", "logMultiprocessing", "logProcesses"):  # no line shows them, and each costs time
        setattr(logging, unused, False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)


def _restart_by_plain_path() -> None:
    """Execute the interpreter by a path without links or `..`: jails show only the folders on the way to it."""
    folder, name = os.path.split(sys.executable)
    plain = os.path.join(os.path.realpath(folder), name)
    os.execv(plain, [plain, *sys.orig_argv[1:]])


class AddressRefusedError(Exception):
    """The server cannot listen on the given address."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise AddressRefusedError(
            f"port: cannot listen on {host}:{port}: {error}. Name another --port, or 0"
        ) from error


def _announce(settings: Settings, executor: Executor, address: tuple[Any, ...]) -> None:
    """Print the server's address first, then its description."""
    if executor.tier is IsolationTier.D:
        logger.warning(
            "isolation tier D: programs run with this server's rights, limited in time, memory and output only"
        )
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"http://{host}:{address[1]}"
    sys.stdout.write(_start_page(settings, executor, url))
    sys.stdout.flush()
    tier = str(executor.tier)
    extra = {"address": url, "isolation": tier, "num_slots": settings.slot_count, "version": __version__}
    logger.info("started: %s, isolation tier %s, %d slots", url, tier, settings.slot_count, extra=extra)


def _start_page(settings: Settings, executor: Executor, address: str) -> str:
    """Return the lines for an operator; the first is `listening on ADDRESS`, which parent processes read."""
    rows = [
        ("isolation", f"tier {executor.tier}: {_MEANING[executor.tier]}; memory: {executor.memory_enforcement}"),
        *(("", _canary(canary)) for canary in executor.canaries),
        ("slots", f"{settings.slot_count}, and {settings.spare_slot_count} for while others sleep"),
        ("preloads", ", ".join(_preload(name, modules) for name, modules in executor.preloads.items()) or "none"),
        ("limits", _limits(settings)),
    ]
    return "\n".join([f"listening on {address}", *(f"  {name:<10} {text}".rstrip() for name, text in rows)]) + "\n"


def _canary(canary: Canary) -> str:
    text = f"{'passed' if canary.passed else 'FAILED'}  {canary.name}"
    return f"{text}: {canary.detail}" if canary.detail else text


def _preload(name: str, modules: Sequence[str]) -> str:
    return f"{name} ({' '.join(modules)})" if modules else name


def _limits(settings: Settings) -> str:
    most = settings.max_limits
    assert most.memory_bytes is not None
    assert most.output_bytes is not None
    assert most.disk_bytes is not None
    return (
        f"cpu {most.cpu_time_s:g} s, wall {most.wall_time_s:g} s, memory {most.memory_bytes / MIB:g} MiB, "
        f"output {most.output_bytes / MIB:g} MiB, disk {most.disk_bytes / MIB:g} MiB, {most.max_tasks} tasks"
    )


def _stop_at_end_of_stdin(server: JudgeServer) -> None:
    """Stop the server at the end of stdin; end the process if that fails."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    server.stop_at_once()
    time.sleep(_FORCED_EXIT_AFTER_S)
    os._exit(1)  # the slots see their sockets close, and clean up


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            ": ".join(filter(None, [".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")]))
            for item in error.errors()
        )
    if isinstance(error, SettingsError):
        return f"{str(error).removeprefix('error parsing CLI: ')}. --help names every setting"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
