"""A synchronous driver of the jail, for tests and for trying things: starts a launcher and slots, runs one job at a time.

with jail(IsolationTier.A) as started:
    print(started.run_python("print(1)").stdout)
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from code_judge_server.jail import protocol
from code_judge_server.jail.launch.plan import Plan, job_environment, make_plan
from code_judge_server.jail_executor.sealed_files import with_names
from code_judge_server.schemas import IsolationTier

MIB = 1024 * 1024
PYTHON = sys.executable
LIMITS = {"cpu_time_s": 10.0, "memory_bytes": 256 * MIB, "max_tasks": 64, "disk_bytes": 64 * MIB}


@dataclass
class Ran:
    """Result of a job."""

    stdout: bytes
    stderr: bytes
    ended: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace").strip()


class SlotEnd:
    """The server's end of one slot."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end = end
        self.pid = pid

    def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] = {},
        stdin: bytes = b"",
        interpret: bool = False,
        limits: Mapping[str, Any] = {},
        collect: Sequence[str] = (),
        collect_bytes: int = MIB,
        kill_after_s: float | None = None,
    ) -> Ran:
        """Run one job until nothing of it is left."""
        outputs = [os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)]
        sent = [_memfd(b"".join(with_names(files, collect))), _memfd(stdin), outputs[0][1], outputs[1][1]]
        collected = os.memfd_create("collected") if collect else None
        message = {
            "kind": "job",
            "argv": list(argv),
            "interpret": interpret,
            "limits": {**LIMITS, **limits},
            "files": [len(content) for content in files.values()],
            "collect": len(collect),
            "collect_bytes": collect_bytes if collect else 0,
        }
        protocol.send(self.end, message, tuple(sent) + (() if collected is None else (collected,)))
        for descriptor in sent:
            os.close(descriptor)
        texts: list[bytes] = [b"", b""]

        def read(index: int) -> None:
            with open(outputs[index][0], "rb") as pipe:
                texts[index] = pipe.read()

        readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
        for reader in readers:
            reader.start()
        if kill_after_s is not None:
            killer = threading.Timer(kill_after_s, protocol.send, (self.end, {"kind": "kill"}))
            killer.start()
        ended = self._await_end()
        for reader in readers:
            reader.join()
        files_back = _split(collected, list(collect), ended["collected"])
        return Ran(stdout=texts[0], stderr=texts[1], ended=ended, files=files_back)

    def _await_end(self) -> dict[str, Any]:
        ended = self.answer()
        assert ended["kind"] == "ended"
        if ended["clears"]:
            assert self.answer() == {"kind": "cleared"}
        return ended

    def answer(self) -> dict[str, Any]:
        """Return the next message of the slot."""
        received = protocol.receive(self.end)
        assert received is not None, "the slot died"
        return received[0]


class Jail:
    """A launcher and the slots that were asked of it."""

    def __init__(self, plan: Plan, end: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.end = end
        self.process = process
        self._slots: dict[tuple[int, str], SlotEnd] = {}

    def slot(self, number: int = 0, preload: str = "bare") -> SlotEnd:
        """Return a slot, which is started at the first call."""
        if (number, preload) not in self._slots:
            ours, theirs = protocol.socket_pair()
            protocol.send(self.end, {"kind": "slot", "number": number, "preload": preload}, (theirs.fileno(),))
            theirs.close()
            received = protocol.receive(self.end)
            assert received is not None, "the launcher died"
            assert "error" not in received[0], received[0]
            self._slots[number, preload] = SlotEnd(ours, received[0]["pid"])
        return self._slots[number, preload]

    def forget_slots(self) -> None:
        """Let the next call start new slots."""
        for slot in self._slots.values():
            slot.end.close()
        self._slots.clear()

    def run(self, argv: Sequence[str], **options: Any) -> Ran:
        """Run one job in slot 0 of `bare`."""
        return self.slot().run(argv, **options)

    def run_python(self, code: str, *, preload: str = "bare", slot: int = 0, **options: Any) -> Ran:
        """Run a program in the warm interpreter."""
        files = {"main.py": code.encode(), **options.pop("files", {})}
        return self.slot(slot, preload).run([PYTHON, "main.py"], files=files, interpret=True, **options)

    def shown_in_tmp(self) -> list[str]:
        """Return the entries of a job's own /tmp: the way to the interpreter, if it lies below /tmp."""
        return sorted({path.split("/")[2] for path in self.plan.read_only if path.startswith("/tmp/")})

    def close(self) -> None:
        """End the launcher and wait for it."""
        self.end.close()
        for slot in self._slots.values():
            slot.end.close()
        self.process.wait(60)
        self.plan.close()


@contextmanager
def jail(
    tier: IsolationTier = IsolationTier.A,
    *,
    num_slots: int = 1,
    preloads: Mapping[str, Sequence[str]] = {"bare": ()},
    fast_path: bool = True,
) -> Iterator[Jail]:
    """Start a launcher, and end it."""
    plan = make_plan(tier, num_slots=num_slots, preloads=preloads, fast_path=fast_path)
    ours, theirs = protocol.socket_pair()
    process = subprocess.Popen(
        plan.command(theirs.fileno()),
        stdin=subprocess.DEVNULL,
        env=job_environment(),
        cwd="/",
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    started = Jail(plan, ours, process)
    try:
        protocol.send(ours, *plan.start_message())
        received = protocol.receive(ours)
        assert received is not None, "the launcher died"
        assert received[0]["kind"] == "ready", received[0]
        yield started
    finally:
        started.close()


def _memfd(content: bytes) -> int:
    descriptor = os.memfd_create("content")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _split(collected: int | None, paths: list[str], files: list[tuple[int, int | None]]) -> dict[str, bytes]:
    if collected is None:
        return {}
    with open(collected, "rb") as content:
        content.seek(0)
        return {paths[index]: content.read(size) for index, size in files if size is not None}
