"""Machines of their own on this one: each has its network, its processes and its shared memory, and a cable to pull.

Nothing of them has a name outside: namespaces and links are gone with the processes that hold them, however the test ends.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = "10.77.0.1"
RAY_PORT = 6379
_ISOLATE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_ENVIRONMENT = {
    # A machine that does not answer is dead for Ray after half a minute, instead of more than one.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": str(ROOT),
}


def skip_without_namespaces() -> None:
    """Skip the test where this process may not make a network."""
    tools = [tool for tool in ("ip", "mount", "nsenter", "unshare") if shutil.which(tool) is None]
    if tools:
        pytest.skip(f"machines in network namespaces need {', '.join(tools)}, which is not installed")
    command = [
        *_ISOLATE,
        "sh",
        "-c",
        "mount -t tmpfs tmpfs /dev/shm && ip link add type bridge && ip link add type veth",
    ]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"machines in network namespaces need root with CAP_NET_ADMIN: {tried.stderr.strip()}")


@dataclass(frozen=True)
class Machine:
    """A machine with a cable to the switch."""

    address: str
    inside: psutil.Process
    """Its first process, with which all others there end."""
    log: Path
    """Output of Ray's commands."""
    ray_dir: Path

    def popen(self, *command: str, **options: object) -> subprocess.Popen[str]:
        """Start a program there."""
        enter = ("nsenter", "--target", str(self.inside.pid), "--net", "--mount", "--pid", f"--wd={ROOT}")
        environment = os.environ | _ENVIRONMENT | {"TMPDIR": str(self.ray_dir)}
        return subprocess.Popen([*enter, *command], text=True, env=environment, **options)  # type: ignore[call-overload]

    def start_ray(self, *, num_cpus: int) -> None:
        """Keep Ray running there, as an operator does: whenever it ends, it is started again."""
        role = f"--address={HEAD}:{RAY_PORT}"
        if self.address == HEAD:
            role = f"--head --port={RAY_PORT} --include-dashboard=false --temp-dir={self.ray_dir}"
        ray = Path(sys.executable).parent / "ray"
        command = f"{ray} start {role} --node-ip-address={self.address} --num-cpus={num_cpus} --block"
        script = f"while true; do {command} --object-store-memory=80000000; sleep 2; done >>{self.log} 2>&1"
        self.popen("sh", "-c", script)

    def kill(self) -> None:
        """End everything there at once, as when its power fails."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.inside.send_signal(signal.SIGKILL)


class Network:
    """A switch with machines."""

    def __init__(self, folder: Path, holders: contextlib.ExitStack) -> None:
        """Begin without machines; everything ends with `holders`."""
        self._folder = folder
        self._holders = holders
        self._machines: list[Machine] = []
        self._switch = self._hold("unshare", "--net", "--fork", "--kill-child", setup="true")
        self._in_switch("ip link add switch type bridge && ip link set switch up")

    def add(self) -> Machine:
        """Plug in another machine; the first is the head."""
        number, ray_dir = len(self._machines) + 1, self._folder / "r"
        ray_dir.mkdir(exist_ok=True)
        setup = f"mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs {ray_dir} && ip link set lo up"
        inside, address = self._hold(*_ISOLATE, setup=setup), f"10.77.0.{number}"
        machine = Machine(address, inside, self._folder / f"machine{number}.log", ray_dir)
        self._in_switch(
            f"ip link add port{number} type veth peer name cable netns {inside.pid} && "
            f"ip link set port{number} master switch up"
        )
        _finish(machine.popen("sh", "-c", f"ip addr add {address}/24 dev cable && ip link set cable up"))
        self._machines.append(machine)
        return machine

    def cut_off(self, machine: Machine) -> None:
        """Pull its cable: nobody is told anything."""
        self._in_switch(f"ip link set port{self._machines.index(machine) + 1} down")

    def connect(self, machine: Machine) -> None:
        """Put its cable back."""
        self._in_switch(f"ip link set port{self._machines.index(machine) + 1} up")

    def _in_switch(self, command: str) -> None:
        enter = ("nsenter", "--target", str(self._switch.pid), "--net")
        _finish(subprocess.Popen([*enter, "sh", "-c", command], text=True))

    def _hold(self, *isolate: str, setup: str) -> psutil.Process:
        """Make namespaces and return their first process, which ends when this one does."""
        # It must reap what is orphaned there, and by ignoring how children end it has the kernel do that.
        script = f"set -e; {setup}; trap '' CHLD; echo ready; exec cat"
        holder = subprocess.Popen(
            [*isolate, "sh", "-c", script], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders.callback(_end, holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        [inside] = psutil.Process(holder.pid).children()
        return inside


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Give a switch without machines; everything is gone at the end."""
    # Not of pytest: the names of Ray's sockets must be short.
    with (
        tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as holders,
    ):
        yield Network(Path(folder), holders)


def _finish(process: subprocess.Popen[str]) -> None:
    assert process.wait(timeout=60) == 0, process.args


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()
