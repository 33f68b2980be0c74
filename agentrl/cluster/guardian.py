"""A small process that cleans up after a runner that could not: it outlives even `kill -9` of it.

The runner starts it first and holds the other end of its standard input. When that end closes without a farewell, the
runner is dead: every process that carries the run's mark in its environment (Ray's, the engines, the judge) is killed, and
the run's temporary folder removed. Programs that the judge runs have a clean environment; their slot ends them.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "AGENTRL_RUN_MARK"
_FAREWELL = "farewell"
_GRACE_S = 2.0
_LIMIT_S = 20.0


class Guardian:
    """The runner's side: starts the process, and says farewell when all has been cleaned up properly."""

    def __init__(self, *, mark: str, temp_dir: Path) -> None:
        """Start guarding; `mark` must be in the environment of everything that is started afterwards."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.cluster.guardian", mark, str(temp_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != MARK},
        )

    def dismiss(self) -> None:
        """End the guard; what is left of the run by then is cleaned up all the same."""
        self._process.communicate(_FAREWELL)


def _marked_processes(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue  # it ended while we looked, or is another user's
            if wanted in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def _kill_marked(mark: str) -> None:
    limit = time.monotonic() + _LIMIT_S
    while (pids := _marked_processes(mark)) and time.monotonic() < limit:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _main(mark: str, temp_dir: Path) -> None:
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    farewell = sys.stdin.read()
    if farewell != _FAREWELL:
        time.sleep(_GRACE_S)  # Ray and the judge notice by themselves, and end more cleanly than we can
    _kill_marked(mark)
    shutil.rmtree(temp_dir, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
