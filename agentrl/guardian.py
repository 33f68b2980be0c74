"""A small process that cleans up after its owner, even after `kill -9` of it.

The *owner* starts it first and holds the other end of its standard input. When that end closes without a farewell, the owner is
dead: the guardian kills everything the owner started, known by a mark in the environment or by open files, and removes the
temporary folder. The runner has one for all processes of a run (Ray's, the engines, the judge), a vLLM engine one for vLLM's.
Programs that the judge runs have a clean environment; their slot ends them.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

logger = logging.getLogger(__name__)

MARK = "AGENTRL_RUN_MARK"
_FAREWELL = "farewell"
_GRACE_S = 2.0
_TRACKER_GRACE_S = 3.0
_LIMIT_S = 20.0


class Guardian:
    """The owner's side: starts the process, and says farewell at the end."""

    def __init__(self, *, mark: str, temp_dir: Path) -> None:
        """Start guarding; every process started afterwards must have an environment variable with the value `mark`."""
        self._mark, self._temp_dir = mark, temp_dir
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.guardian", mark, str(temp_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # an open log would mark it as a process of the run
            text=True,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != MARK},
        )

    def dismiss(self) -> None:
        """End the guardian, which kills what is left; this process does so if the guardian was killed."""
        self._process.communicate(_FAREWELL)
        if self._process.returncode != 0:
            logger.warning("guardian: its process ended with the run (%d); cleaning up here", self._process.returncode)
            _clean_up(os.getpid(), self._mark, self._temp_dir)


def _processes_of(owner: int, mark: str, temp_dir: Path) -> list[int]:
    """Return the processes that carry the mark or have a file of the temporary folder open, except the owner.

    Open files find processes that rename themselves, as Ray's do: that overwrites their environment.
    """
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {os.getpid(), owner}
    return [pid for pid in pids if _has_mark(pid, mark) or _has_open_file(pid, temp_dir)]


def _has_mark(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):  # it ended while we looked, or is another user's
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(variable.endswith(f"={mark}".encode()) for variable in variables)
    return False


def _has_open_file(pid: int, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink().is_relative_to(folder):
                    return True
    return False


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill_all_of(owner: int, mark: str, temp_dir: Path) -> None:
    """Kill the owner's processes, resource trackers last; the owner itself is dead or has said farewell.

    A tracker removes the named semaphores and shared memory of its process once that is gone.
    """
    started, num_looks_without = time.monotonic(), 0
    while num_looks_without < 2 and time.monotonic() < started + _LIMIT_S:
        pids = _processes_of(owner, mark, temp_dir)
        # A process that was just started shows its environment a moment later.
        num_looks_without = 0 if pids else num_looks_without + 1
        spare_trackers = time.monotonic() < started + _TRACKER_GRACE_S
        for pid in pids:
            if not (spare_trackers and _is_resource_tracker(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _main(mark: str, temp_dir: Path) -> None:
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    owner = os.getppid()
    farewell = sys.stdin.read()
    if farewell != _FAREWELL:
        time.sleep(_GRACE_S)  # Ray and the judge notice by themselves, and end more cleanly
    _clean_up(owner, mark, temp_dir)


def _clean_up(owner: int, mark: str, temp_dir: Path) -> None:
    _kill_all_of(owner, mark, temp_dir)
    shutil.rmtree(temp_dir, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
