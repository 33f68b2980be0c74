"""The server's end of a slot, with a test in place of the slot."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from code_judge_server.jail import protocol
from code_judge_server.jail_executor.meters import OomKills, TreeMeter
from code_judge_server.jail_executor.running_job import RunningJob
from code_judge_server.jail_executor.sealed_files import seal_input
from code_judge_server.jail_executor.slot import Slot
from code_judge_server.jail_executor.watch import Watch
from code_judge_server.sandbox.executor import Job, JobLimits

LIMITS = JobLimits(cpu_time_s=1, wall_time_s=5, memory_bytes=2**26, output_bytes=1000, max_tasks=4, disk_bytes=2**20)
JOB = Job(
    argv=("true",), limits=LIMITS, files={"a/b": b"12", "c": b"345"}, stdin=b"in", collect=("out",), collect_bytes=9
)
ENDED: dict[str, Any] = {
    "kind": "ended",
    "exit_code": 0,
    "signal": None,
    "cpu_time_s": 0.5,
    "wall_time_s": 0.25,
    "max_rss_bytes": 1000,
    "oom_kills": 0,
    "peak_memory_bytes": 2000,
    "collected": [],
    "error": None,
    "clears": False,
}


class OtherEnd:
    """The slot's end of the socket, and a process in place of the slot."""

    def __init__(self, end: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        self.end = end
        self.process = process
        self.idle_count = 0
        self.end.settimeout(60)

    def take_job(self) -> tuple[protocol.Message, list[int]]:
        """Return the job message and its descriptors."""
        received = protocol.receive(self.end)
        assert received is not None
        return received

    def is_dead(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None


@asynccontextmanager
async def slot_with_other_end() -> AsyncIterator[tuple[Slot, OtherEnd]]:
    """Give a slot whose process is a sleeper, and the other end of its socket."""
    watch = Watch(asyncio.get_running_loop())
    ours, theirs = protocol.socket_pair()
    process = start("sleep", "600")
    slot = Slot(
        ours,
        pid=process.pid,
        meter=TreeMeter(process.pid),
        watch=watch,
        oom_kills=OomKills(lambda: 0),
        on_death=lambda: None,
    )
    yield slot, OtherEnd(theirs, process)
    slot.die("the test is over")
    theirs.close()
    process.wait()
    watch.close()


async def begin(slot: Slot, other: OtherEnd, job: Job = JOB) -> RunningJob:
    """Start a job in the slot; `other` counts how often it is idle."""

    def count() -> None:
        other.idle_count += 1

    sealed = await seal_input(job)
    try:
        return slot.begin(job, sealed, interpret=False, on_idle=count)
    finally:
        sealed.close()


def start(*command: str) -> "subprocess.Popen[bytes]":
    """Start the process in place of a slot."""
    return subprocess.Popen(command)


def closes(end: socket.socket) -> None:
    """Close the slot's end."""
    end.close()


def sends(message: Any, descriptors: int = 0) -> Callable[[socket.socket], None]:
    """Return a function that sends a message with `descriptors` descriptors."""

    def send(end: socket.socket) -> None:
        protocol.send(end, message, (0,) * descriptors)

    return send
