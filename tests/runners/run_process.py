"""Runs the real command as a user does, and looks at what it leaves behind."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from agentrl.observability.metrics_file import MetricsRow, read_metrics

SMALL = [
    "rollout.prompts_per_step=4",
    "rollout.samples_per_prompt=8",
    "algorithm.selection.keep=4",
    "validation.every_steps=0",
    "checkpoint.every_steps=2",
    "cluster.check_weights=true",
]
"""Overrides that make a step of the demo take about a second, and have the weights of every sync compared."""


@dataclass
class RunProcess:
    """A runner in a process of its own, with all that it has started so far."""

    process: subprocess.Popen[str]
    run_dir: Path
    temp_dir: Path
    """Its temporary folder, which nobody else has."""

    def wait_for_step(self, step: int, *, timeout_s: float = 500) -> None:
        """Return when `step` is in the metrics."""
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            if steps(self.run_dir)[-1:] >= [step]:
                return
            assert self.process.poll() is None, self.output()
            time.sleep(0.1)
        raise AssertionError(f"step {step} was not reached in {timeout_s} s: {self.output()}")

    def family(self) -> list[psutil.Process]:
        """Return the runner and everything below it, with what has left its session."""
        parent = psutil.Process(self.process.pid)
        mark = parent.children(recursive=True)
        return [parent, *mark]

    def open_shared_memory(self) -> int:
        """Return a descriptor of the folder of its shared memory, with which one sees into it when the run is gone."""
        return os.open(f"/proc/{self.process.pid}/root/dev/shm", os.O_RDONLY)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group, as `timeout`, Slurm and systemd do; Ray's control store is slow to follow."""
        [control_store] = [process for process in self.family() if process.name() == "gcs_server"]
        control_store.suspend()
        os.killpg(self.process.pid, number)
        time.sleep(2)  # the run closes Ray meanwhile
        control_store.resume()

    def output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read() if self.process.poll() is not None else "(still running)"


@contextmanager
def running(
    run_dir: Path,
    *overrides: str,
    config: str = "configs/demo.yaml",
    cwd: Path | None = None,
    python: str = sys.executable,
    runner: str = "rstar2",
    module: str | None = None,
    own_shared_memory: bool = False,
) -> Iterator[RunProcess]:
    """Start a run, as root with a `/dev/shm` of its own if asked to; kill it at the end if it still runs."""
    command = [python, "-m", module or f"agentrl.runners.{runner}", config, f"run.dir={run_dir}", *overrides]
    if own_shared_memory:
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *command]
    with tempfile.TemporaryDirectory(
        prefix="t", ignore_cleanup_errors=True
    ) as temp_dir:  # not of pytest: the names of Ray's sockets must be short
        environment = os.environ | {"TMPDIR": temp_dir}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=environment,
            process_group=0,
        )
        try:
            yield RunProcess(process, run_dir, Path(temp_dir))
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish_run(run_dir: Path, *overrides: str, timeout_s: float = 550, **options: str | Path) -> str:
    """Run to the end and return the output."""
    with running(run_dir, *overrides, **options) as run:  # type: ignore[arg-type]
        output, _ = run.process.communicate(timeout=timeout_s)
        assert run.process.returncode == 0, output
        return output


def steps(run_dir: Path) -> list[int]:
    """Return the steps in the metrics file so far."""
    return [int(row["step"] or 0) for row in metrics(run_dir)]


def metrics(run_dir: Path) -> list[MetricsRow]:
    file = run_dir / "metrics.jsonl"
    return read_metrics(file) if file.exists() else []


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 100) -> bool:
    limit = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.2)
    return condition()


def alive(processes: list[psutil.Process]) -> list[str]:
    """Return those of `processes` that still run, as text for the message."""
    matches = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                matches.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.NoSuchProcess:
            continue
    return matches


def listeners_of(processes: list[psutil.Process]) -> dict[str, str]:
    """Return the TCP sockets on which any of `processes` listens: the address of each by its number in the kernel."""
    own: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                own.add(os.readlink(entry.path).removeprefix("socket:[").removesuffix("]"))
    return {number: address for number, address in listeners().items() if number in own}


def listeners() -> dict[str, str]:
    """Return the TCP sockets of this machine that listen; as numbers, for a port may be another's a moment later."""
    holders = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENS:
                holders[words[9]] = words[1]
    return holders


_LISTENS = "0A"
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
