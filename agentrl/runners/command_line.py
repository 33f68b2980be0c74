"""Command-line code shared by the runners: arguments, signals, and errors as one line and an exit status."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from agentrl.cluster.ray.lost_ray import wait_until_lost
from agentrl.errors import AgentRLError, ConfigError, ToolError
from agentrl.observability.logs import ONLY_IN_FILE
from agentrl.observability.sinks.sink_thread import sink_hangs
from agentrl.run.stop_request import SIGNALS, SignalledError, StopRequest
from agentrl.runners import exit_on_interrupt

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
_SIGNAL_S = 0.2
"""Wait for a signal after an error: one to the whole group may end a worker before this process sees it."""
_CLOSE_S = 10.0
"""Wall clock for closing a run after its Ray has ended; what is left then, the guardian ends."""
_RESUMES = "the same command resumes from its last checkpoint, if there is one"


def make_parser(name: str, description: str, *, package: str = "agentrl.runners") -> argparse.ArgumentParser:
    """Return the parser of `python -m agentrl.runners.NAME config.yaml [section.key=value ...]`."""
    if signal.getsignal(signal.SIGINT) is exit_on_interrupt:  # everything is imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog=f"python -m {package}.{name}", description=description)
    parser.add_argument("config", help="YAML file; one that comes with agentrl is found from any folder")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="change single keys of it")
    return parser


def run_command(
    command: Callable[[], Coroutine[Any, Any, None]],
    *,
    when_stopped: str = _RESUMES,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> int:
    """Run `command` to its end in the event loop of `run`, and return the exit status.

    SIGINT and SIGTERM cancel it, so that everything it started is ended in order, and `when_stopped` is printed. A second one
    is left to the guardian.
    """
    closed = threading.Event()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        return _exit_status(lambda: run(_until_signalled(command(), when_stopped, closed)), when_stopped=when_stopped)
    finally:
        closed.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def exit_without_threads(status: int) -> NoReturn:
    """End this process without waiting for threads: a tool or reward of the user's may never return."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def exit_process(status: int) -> NoReturn:
    """End this process; if a tracker hangs, without the exit handler by which its library would wait for it."""
    if sink_hangs():
        exit_without_threads(status)
    sys.exit(status)


def run_blocking(command: Callable[[StopRequest], None], *, when_stopped: str = _RESUMES) -> int:
    """Run a command that computes in this thread to its end, and return the exit status; see `run_command`."""

    def run() -> None:
        with StopRequest() as stop:
            command(stop)

    return _exit_status(run, when_stopped=when_stopped)


def _exit_status(run: Callable[[], None], *, when_stopped: str) -> int:
    try:
        run()
    except SignalledError as stop:
        return _stopped(stop.number, when_stopped)
    except (AgentRLError, ExceptionGroup) as error:
        causes = _leaves(error)
        if not all(isinstance(cause, AgentRLError) for cause in causes):
            raise  # a bug of ours: its traceback is the message
        for line in dict.fromkeys(_describe_error(cause) for cause in causes):
            print(line, file=sys.stderr)
        return EXIT_USAGE if isinstance(causes[0], ConfigError | ToolError) else EXIT_FAILED
    return 0


def _stopped(number: int, when_stopped: str) -> int:
    print(f"stopped by {signal.Signals(number).name}; {when_stopped}", file=sys.stderr, flush=True)
    return 128 + number


def _exit_without_ray(number: int, when_stopped: str, closed: threading.Event) -> None:
    """End this process if it is still not closed some time after Ray ended, which may have got the signal too."""
    if wait_until_lost() and not closed.wait(_CLOSE_S):
        os._exit(_stopped(number, when_stopped))


async def _until_signalled(command: Coroutine[Any, Any, None], when_stopped: str, closed: threading.Event) -> None:
    task = asyncio.ensure_future(command)
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        loop.call_soon_threadsafe(task.cancel)
        threading.Thread(target=_exit_without_ray, args=(number, when_stopped, closed), daemon=True).start()

    # Not handlers of the loop: the first callback after the signal may be one that waits in a call to the lost Ray.
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        await task
    except (asyncio.CancelledError, Exception) as error:
        if isinstance(error, Exception) and not received:
            await asyncio.sleep(_SIGNAL_S)
        if not received:
            raise
        if not isinstance(error, asyncio.CancelledError):  # most often that of workers which got the signal too
            logger.error("error after a signal", exc_info=error, extra=ONLY_IN_FILE)
        raise SignalledError(received[0]) from None


def _describe_error(error: BaseException) -> str:
    """Return an error in one line, with the process that raised it; its traceback goes only to the log."""
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        logger.error("%s: %s", error, note, extra=ONLY_IN_FILE)
    # The first line of a note is `raised in actor 1: ` and what Ray calls that process.
    places = [note.partition(": ")[0].partition("\n")[0] for note in notes]
    place = f" ({', '.join(places)}; see run.log)" if places else ""
    return f"error: {error}{place}"


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in _leaves(member)]
    return [error]
