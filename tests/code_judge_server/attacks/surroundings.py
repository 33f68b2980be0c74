"""Targets of attacks: secrets, listeners, processes and IPC objects of another user on the judge's machine."""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ordinary_user import as_ordinary_user

_IPC_CREAT = 0o1000
_IPC_RMID = 0
_libc = ctypes.CDLL(None, use_errno=True)


def new_canary() -> str:
    """Return a word that attacks look for."""
    return f"CANARY-{secrets.token_hex(8)}"


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """The targets that the judge's user can reach."""

    canary: str
    """Secret word in a file and in the judge's environment; attacks do not know it."""
    canary_file: Path
    listeners: list[socket.socket]
    """Sockets that nobody has a reason to connect to."""
    victim: psutil.Process
    """A sleeping process."""
    target: dict[str, Any]
    """Facts given to attacks."""

    def aim_at(self, *, server_pid: int, url: str, isolated: bool) -> None:
        """Give attacks the facts about the judge that runs them."""
        self.target |= {"server_pid": server_pid, "judge_port": int(url.rpartition(":")[2]), "isolated": isolated}

    def signs_of_contact(self) -> list[str]:
        """Return the contacts since the last call."""
        signs = [f"{listener.getsockname()!r} was spoken to" for listener in self.listeners if _was_spoken_to(listener)]
        if self.victim.status() != psutil.STATUS_SLEEPING:
            signs.append(f"the victim is {self.victim.status()}")
        if self.canary_file.read_text() != self.canary:
            signs.append("the canary file was changed")
        return signs


@contextmanager
def surroundings(folder: Path, *, ordinary_user: bool) -> Iterator[Surroundings]:
    """Set up everything, with files in `folder`; remove it at the end."""
    canary, name = new_canary(), f"target-{secrets.token_hex(4)}"
    canary_file = folder / "canary.txt"
    canary_file.write_text(canary)
    with ExitStack() as stack:
        stack.callback(canary_file.unlink)
        listeners, addresses = _listeners(stack, folder, name)
        key = _ipc_objects(stack)
        shared = Path("/dev/shm", name)
        shared.write_text(canary)
        stack.callback(shared.unlink)
        shared.chmod(0o666)
        victim = _victim(stack, folder, ordinary_user=ordinary_user)
        target = {
            "canary_file": str(canary_file),
            "folder_name": folder.name,
            "ipc_key": key,
            "shm_name": name,
            "victim_pid": victim.pid,
            **addresses,
        }
        yield Surroundings(canary=canary, canary_file=canary_file, listeners=listeners, victim=victim, target=target)


def _listeners(stack: ExitStack, folder: Path, name: str) -> tuple[list[socket.socket], dict[str, Any]]:
    unix_path = str(folder / "listener")
    first = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    first.bind(("127.0.0.1", 0))
    port = first.getsockname()[1]
    listeners = [first]
    for family, kind, address in (
        (socket.AF_INET6, socket.SOCK_STREAM, ("::1", port)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)),
        (socket.AF_INET6, socket.SOCK_DGRAM, ("::1", port)),
        (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}"),
        (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{name}-datagram"),
        (socket.AF_UNIX, socket.SOCK_STREAM, unix_path),
    ):
        with contextlib.suppress(OSError):  # a machine without IPv6
            listener = stack.enter_context(socket.socket(family, kind))
            listener.bind(address)
            listeners.append(listener)
    stack.callback(os.unlink, unix_path)
    os.chmod(unix_path, 0o777)
    for listener in listeners:
        listener.setblocking(False)
        if listener.type == socket.SOCK_STREAM:
            listener.listen(64)
    return listeners, {"tcp_port": port, "abstract_name": name, "unix_path": unix_path}


def _ipc_objects(stack: ExitStack) -> int:
    key = secrets.randbelow(1 << 30) + 1
    memory = _libc.shmget(key, 4096, _IPC_CREAT | 0o666)
    stack.callback(_libc.shmctl, memory, _IPC_RMID, None)
    messages = _libc.msgget(key, _IPC_CREAT | 0o666)
    stack.callback(_libc.msgctl, messages, _IPC_RMID, None)
    return key


def _victim(stack: ExitStack, folder: Path, *, ordinary_user: bool) -> psutil.Process:
    command = ["/bin/sleep", "3600"]
    process = subprocess.Popen(as_ordinary_user(command, folder=folder) if ordinary_user else command)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGKILL)
    return psutil.Process(process.pid)


def _was_spoken_to(listener: socket.socket) -> bool:
    num_times = 0
    while True:
        try:
            if listener.type == socket.SOCK_STREAM:
                listener.accept()[0].close()
            else:
                listener.recv(1024)
        except BlockingIOError:
            return num_times > 0
        num_times += 1
