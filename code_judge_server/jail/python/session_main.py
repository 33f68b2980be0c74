"""The program of one Python session, the `main.py` of a long job: a supervisor, and below it a parked process per snapshot.

    server ── socket (descriptor 0) ──> supervisor ── socket per snapshot ──> parked process ── fork ──> cell

A cell runs in a fork of the snapshot that it starts from. A cell that succeeds is parked as a new snapshot; one that is
killed, or that raises (unless `keep_on_error`), leaves nothing, and its starting snapshot is unchanged. Processes
and threads of a cell end with it; files stay. All of this belongs to the author of the cells: the server trusts nothing of it,
and kills the whole job if it does not answer, or uses resources while no cell runs. Still no cell has the socket to the server.

Server to supervisor: `{"kind": "cell", "start": id, "snapshot": id, "number": n, "max_chars": n, "keep_on_error": bool,
"files": [size, ...], "collect_bytes": n}` + [code, stdin, stdout, stderr, result, files and their names, collected];
`{"kind": "kill"}`; `{"kind": "drop", "snapshot": id}`.
Supervisor to server: `{"kind": "ready"}`; for each cell `{"kind": "ended", "number": n, "state": "kept" | "failed" | "died" |
"gone" | "refused", "exit_code", "signal", "wall_time_s"}`: kept as a snapshot, raised something and was not kept, died or was
killed, had no snapshot to start from, or could not be handed to it.
"""

import contextlib
import ctypes
import errno
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

from code_judge_server.jail.python.notebook import Notebook, describe
from code_judge_server.jail.python.session_files import collect_files, write_files

_MAX_MESSAGE_BYTES = 65536
_MAX_DESCRIPTORS = 8
_INIT = 1
_DEATH_POLL_S = 0.0005
_PR_SET_DUMPABLE = 4
OPEN_FILES_FACTOR = 16
"""Factor by which the supervisor may open more files than a program: the kernel lets a process pass descriptors only while
fewer are in flight than its own limit, counted over all processes of its user.
"""
_OF_A_CELL = "1000"
"""OOM score adjustment of a cell: it is killed before the snapshots and the supervisor, which have lower ones."""

Message = dict[str, Any]


class Snapshot:
    """A parked process, as seen by the supervisor."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel


class Supervisor:
    """Lets cells run, one at a time, without running their code itself."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._snapshots: dict[int, Snapshot] = {0: _park_first(server)}
        ctypes.pythonapi.prctl(
            _PR_SET_DUMPABLE, 0, 0, 0, 0
        )  # cells have the same user, and must not read or write this process

    def serve(self) -> None:
        """Follow the server's messages until it closes its socket."""
        _send(self._server, {"kind": "ready"})
        while (received := _receive(self._server)) is not None:
            message, descriptors = received
            if message["kind"] == "cell":
                _send(self._server, {"kind": "ended", "number": message["number"], **self._run(message, descriptors)})
            elif message["kind"] == "drop":
                self._drop(message["snapshot"])

    def _run(self, message: Message, descriptors: list[int]) -> Message:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        origin = self._snapshots.get(message["start"])
        started_at = time.monotonic()
        try:
            if origin is None:
                return _gone()
            if not _send(origin.channel, message, [*descriptors, theirs.fileno()]):
                return {**_gone(), "state": "refused"}
            reply = _receive(origin.channel)
            if reply is None:
                self._drop(message["start"])
                return _gone()
        finally:
            theirs.close()
            for descriptor in descriptors:
                os.close(descriptor)
        result = self._wait(reply[0]["pid"], ours)
        wall_time_s = time.monotonic() - started_at
        if result is not None and result["kept"]:
            self._snapshots[message["snapshot"]] = Snapshot(result["pid"], ours)
        else:
            ours.close()
        if result is None or self._others():  # listing them takes long if many of them have used up the memory
            self._kill_others()
        _reap()
        _send(origin.channel, {"kind": "reap"})
        reaped = _receive(origin.channel)
        status = reaped[0]["status"] if reaped is not None else None
        if result is None:
            return {"state": "died", **_end_of(status), "wall_time_s": wall_time_s}
        state = "kept" if result["kept"] else "failed"
        return {"state": state, "exit_code": result["exit_code"], "signal": None, "wall_time_s": wall_time_s}

    def _wait(self, pid: int, channel: socket.socket) -> Message | None:
        """Return a cell's last message; None if it died, or the server had it killed."""
        poll = select.poll()
        pidfd = os.pidfd_open(pid)
        for descriptor in (channel.fileno(), pidfd, self._server.fileno()):
            poll.register(descriptor, select.POLLIN)
        try:
            ready = [descriptor for descriptor, _ in poll.poll()]
        finally:
            os.close(pidfd)
        if channel.fileno() in ready and (received := _receive(channel)) is not None:
            return received[0]
        if self._server.fileno() in ready and _receive(self._server) is None:
            os._exit(0)
        return None

    def _kill_others(self) -> None:
        # First stop all but this and the first process: a crowd that forks would leave no core to kill it.
        os.kill(-1, signal.SIGSTOP)
        while others := self._others():
            for pid in others:
                _signal(pid, signal.SIGKILL)
            time.sleep(_DEATH_POLL_S)
        for snapshot in self._snapshots.values():
            _signal(snapshot.pid, signal.SIGCONT)

    def _others(self) -> list[int]:
        """Return all processes in this job but the snapshots, the first process and this one."""
        kept = {_INIT, os.getpid(), *(snapshot.pid for snapshot in self._snapshots.values())}
        return [
            int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in kept and _is_alive(name)
        ]

    def _drop(self, number: int) -> None:
        snapshot = self._snapshots.pop(number, None)
        if snapshot is not None:
            snapshot.channel.close()
            _signal(snapshot.pid, signal.SIGKILL)


def main() -> NoReturn:
    """Serve the server, whose socket is stdin."""
    _remove_own_files()
    server = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    Supervisor(server).serve()
    os._exit(0)


def _remove_own_files() -> None:
    """Empty the folder for the cells, so that they can import nothing of this package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "code_judge_server"]:
        if (path := getattr(sys.modules.pop(name), "__file__", None)) is not None:
            os.remove(path)
    folder = os.path.dirname(__file__)
    os.remove(sys.argv[0])
    os.removedirs(os.path.relpath(folder))


def _park_first(server: socket.socket) -> Snapshot:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = _fork()
    if pid == 0:
        server.close()
        ours.close()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // OPEN_FILES_FACTOR
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        _park(theirs, Notebook(run_coroutine=_run_coroutine))
    theirs.close()
    return Snapshot(pid, ours)


def _park(channel: socket.socket, notebook: Notebook) -> NoReturn:
    """Fork a cell for each request of the supervisor. The fork returns here when its cell has succeeded."""
    child = 0
    while (received := _receive(channel)) is not None:
        message, descriptors = received
        if message["kind"] == "reap":
            _send(channel, {"status": _reap().get(child)})
            continue
        child = _fork()
        if child == 0:
            channel.close()
            channel = _be_cell(message, descriptors, notebook)
            continue
        for descriptor in descriptors:
            os.close(descriptor)
        _send(channel, {"pid": child})
    os._exit(0)


def _be_cell(message: Message, descriptors: list[int], notebook: Notebook) -> socket.socket:
    """Run a cell in this fork, and return its channel to the supervisor; a cell that is not kept exits here."""
    code, stdin, stdout, stderr, result, files, collected, channel = descriptors
    oom_score_adj = _swap_oom_score_adj(_OF_A_CELL)
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target)
    source = os.pread(code, os.fstat(code).st_size, 0).decode("utf-8", "surrogatepass")
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), "utf-8", "surrogateescape")  # noqa: SIM115
    pid = os.getpid()
    display, error = [], None
    try:
        wanted = write_files(files, message["files"])
        display, error = notebook.run(source, number=message["number"], max_chars=message["max_chars"])
    except OSError as failure:
        wanted, error = [], failure
    _flush()
    if os.getpid() != pid:
        os._exit(0)  # end of a fork made by the cell
    described = None if error is None else _described(error, message["max_chars"])
    files_back = collect_files(wanted, message["collect_bytes"], collected)
    os.pwrite(result, json.dumps({"display": display, "error": described, "files": files_back}).encode(), 0)
    for descriptor in (code, stdin, stdout, stderr, result, files, collected):
        os.close(descriptor)
    supervisor = socket.socket(fileno=channel)
    kept = error is None or message["keep_on_error"]
    exit_code = 0 if error is None else _exit_code(error)
    del error  # and with it the frames of the cell
    old_process_fd = _leave_threads_behind() if kept and len(os.listdir("/proc/self/task")) > 1 else None
    _send(supervisor, {"kept": kept, "pid": os.getpid(), "exit_code": exit_code})
    if old_process_fd is not None:
        os.close(old_process_fd)
    if not kept:
        os._exit(exit_code)
    _swap_oom_score_adj(oom_score_adj)
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)  # otherwise this cell's pipes would stay open as long as its snapshot
    os.close(null)
    return supervisor


def _run_coroutine(coroutine: Coroutine[Any, Any, object]) -> object:
    import asyncio  # here, because few cells await anything

    with asyncio.Runner() as runner:  # of this cell: snapshots must not share an event loop's polled files
        return runner.run(coroutine)


def _described(error: BaseException, max_chars: int) -> Message:
    name, value, traceback = describe(error)
    return {"name": name[:max_chars], "value": value[:max_chars], "traceback": traceback[:max_chars]}


def _exit_code(error: BaseException) -> int:
    """Return the exit code of an exception, which is never 0: even a clean `SystemExit` is no success of a cell."""
    code = error.code if isinstance(error, SystemExit) else None
    return code & 0xFF or 1 if isinstance(code, int) else 1


def _swap_oom_score_adj(value: str) -> str:
    """Set this process's OOM score adjustment; return the previous one."""
    with open("/proc/self/oom_score_adj", "r+") as score:
        before = score.read()
        score.write(value)
    return before


def _leave_threads_behind() -> int:
    """Continue in a fork, which has one thread; the old process exits when the fork closes the returned descriptor."""
    random = sys.modules.get("random")
    state = random.getstate() if random is not None else None
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        os.read(reading, 1)  # the supervisor must know of the fork before this process ends
        os._exit(0)
    os.close(reading)
    if random is not None:
        random.setstate(state)
    return writing


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # a cell may have closed or replaced it
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess] - then it raises too


def _fork() -> int:
    """Fork without registered hooks, which would reseed `random`. There is one thread."""
    return ctypes.pythonapi.fork()


def _reap() -> dict[int, int]:
    """Reap every child that has ended; return their statuses."""
    statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def _is_alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return not stat.read().rpartition(") ")[2].startswith("Z")
    except (OSError, ValueError):
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.kill(pid, number)


def _gone() -> Message:
    return {"state": "gone", **_end_of(None), "wall_time_s": 0.0}


def _end_of(status: int | None) -> Message:
    if not status:
        return {"exit_code": None, "signal": None}
    return {
        "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
    }


def _send(end: socket.socket, message: Message, descriptors: list[int] | None = None) -> bool:
    """Send a message; return False if the kernel cannot pass descriptors at the moment."""
    try:
        socket.send_fds(end, [json.dumps(message).encode()], descriptors or [], socket.MSG_NOSIGNAL)
    except OSError as error:
        return error.errno != errno.ETOOMANYREFS  # any other error: the peer has closed, which `_receive` reports
    return True


def _receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    try:
        data, descriptors, _, _ = socket.recv_fds(end, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        return (json.loads(data), descriptors) if data else None
    except (OSError, ValueError):
        return None
