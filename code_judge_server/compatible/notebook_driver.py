"""The program that runs the cells of one SandboxFusion notebook: the `main.py` of a job.

It reads `{"num_cells", "cell_timeout", "total_timeout", "cpu_time", "max_chars"}` as JSON from stdin, runs the files
`CELL_FILE` in one namespace as a notebook does, and after each cell writes one line of JSON, `{"stdout", "stderr", "display",
"error"}`, to `RESULT_FILE`. The cells run in a child: if it ends early, the results of the earlier cells stay. The results
concern only the author of the cells, who shares the job with this driver: they are no verdict.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from typing import Any

CELL_FOLDER = ".cells"
CELL_FILE = CELL_FOLDER + "/{number}.py"
RESULT_FILE = CELL_FOLDER + "/results.jsonl"
_PACKAGE = "code_judge_server"
_POLL_MS = 50
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of Linux's `posix-timers.h`: together with a process id, it names the CPU clock of that process."""


class Capture:
    """Captures everything written to the descriptors 1 and 2, and returns it cell by cell."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._streams = (sys.stdout, sys.stderr)  # a cell may replace them
        self._files = [tempfile.TemporaryFile() for _ in self._streams]  # noqa: SIM115 - open until the end
        for target, file in enumerate(self._files, start=1):
            os.dup2(file.fileno(), target)

    def start(self) -> None:
        """Forget the output so far."""
        for file in self._files:
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)

    def texts(self) -> list[str]:
        """Return the beginning of each stream's output since `start`."""
        for stream in self._streams:
            stream.flush()
        most = 4 * self._max_chars  # a character of UTF-8 has four bytes at most
        written = [os.pread(file.fileno(), most, 0) for file in self._files]
        return [data.decode(errors="replace")[: self._max_chars] for data in written]


class NotebookRun:
    """The run of all cells, in the current process."""

    def __init__(self, request: dict[str, Any]) -> None:
        sys.path.insert(0, os.path.abspath(CELL_FOLDER))
        from code_judge_server.jail.python import notebook

        sys.path[0] = ""
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
        self._describe = notebook.describe
        self._num_cells: int = request["num_cells"]
        self._max_chars: int = request["max_chars"]
        self._cell_timeout_s: float = request["cell_timeout"]
        self._pid = os.getpid()
        signal.signal(signal.SIGALRM, _raise_timeout)
        run_coroutine = asyncio.new_event_loop().run_until_complete
        self._notebook = notebook.Notebook(run_coroutine=run_coroutine, around=self._cell_timeout)
        self._results = open(RESULT_FILE, "wb", buffering=0)  # noqa: SIM115 - open until the end
        self._cells = [_read_cell(number) for number in range(1, self._num_cells + 1)]
        self._capture = Capture(self._max_chars)

    def run(self) -> None:
        """Run each cell, and write its result at once."""
        for number, cell in enumerate(self._cells, start=1):
            self._capture.start()
            display, error = self._notebook.run(cell, number=number, max_chars=self._max_chars)
            stdout, stderr = self._capture.texts()
            if os.getpid() != self._pid:
                os._exit(0)  # end of a fork made by the cell
            errors = [] if error is None else [self._described(error)]
            result = {"stdout": stdout, "stderr": stderr, "display": display, "error": errors}
            line = json.dumps(result, ensure_ascii=False) + "\n"
            self._results.write(line.encode(errors="replace"))  # a cell may print half a character

    @contextlib.contextmanager
    def _cell_timeout(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, self._cell_timeout_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _described(self, error: BaseException) -> dict[str, object]:
        name, value, traceback = self._describe(error, driver_file=_raise_timeout.__code__.co_filename)
        return {"ename": name, "evalue": value, "traceback": traceback.splitlines()}


def _raise_timeout(_signal: int, _frame: types.FrameType | None) -> None:
    raise TimeoutError("the cell took longer than `cell_timeout`")


def _read_cell(number: int) -> str:
    with open(CELL_FILE.format(number=number), encoding="utf-8", newline="") as file:
        return file.read()


def _cpu_time_s(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0  # the process has just ended


def _wait(pid: int, request: dict[str, Any]) -> int:
    """Return the status of the child after it has ended; kill it at its time limit."""
    deadline = time.monotonic() + request["total_timeout"]
    end = select.poll()
    end.register(os.pidfd_open(pid), select.POLLIN)
    while not end.poll(_POLL_MS):
        if time.monotonic() > deadline or _cpu_time_s(pid) > request["cpu_time"]:
            os.kill(pid, signal.SIGKILL)
            break
    return os.waitpid(pid, 0)[1]


def main() -> None:
    """Run the cells in a child, and exit with its status."""
    request = json.load(sys.stdin)
    sys.stdin = open(os.devnull)  # noqa: SIM115 - the cells read it from now on
    pid = os.fork()
    if pid == 0:
        NotebookRun(request).run()
        os._exit(0)  # without waiting for threads of the cells
    status = _wait(pid, request)
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))


if __name__ == "__main__":
    main()
