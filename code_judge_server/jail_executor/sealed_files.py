"""Immutable input of jobs: sealed files in memory."""

import asyncio
import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from code_judge_server.sandbox.executor import ExecutorError, Job
from code_judge_server.sandbox.job_pairs import PipeEnds

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MAX_CHUNKS_PER_WRITE = 512
"""A value below IOV_MAX, which is 1024 on Linux."""
_OFF_LOOP_BYTES = 1 << 20
"""Larger content is copied in a thread: 0.4 ms per MiB, and a precompiled header has a hundred MiB."""


@dataclass(frozen=True, slots=True)
class SealedInput:
    """Input of one job, as descriptors at offset 0; its owner must `close` it."""

    files: int
    """Descriptor of the contents of the files one after the other, then the names."""
    stdin: int

    def close(self) -> None:
        """Close both."""
        os.close(self.files)
        os.close(self.stdin)


def connected_pipes() -> tuple[PipeEnds, PipeEnds]:
    """Return the ends of two pipes, for two jobs that read each other's output."""
    read_first, write_first = os.pipe()
    try:
        read_second, write_second = os.pipe()
    except OSError:
        os.close(read_first)
        os.close(write_first)
        raise
    for end in (read_first, read_second):
        os.fchmod(end, 0o666)  # the jobs have their own users, and may open /dev/stdin and /dev/stdout
    first = PipeEnds(stdin=read_first, stdout=write_second)
    return first, PipeEnds(stdin=read_second, stdout=write_first)


async def seal_input(job: Job) -> SealedInput:
    """Seal the files and the stdin of a job without blocking the event loop.

    Raises:
        ExecutorError: no memory or no descriptors are left.
    """
    if len(job.stdin) + sum(map(len, job.files.values())) < _OFF_LOOP_BYTES:
        return _seal_input(job)
    sealing = asyncio.ensure_future(asyncio.to_thread(_seal_input, job))
    try:
        return await asyncio.shield(sealing)
    except asyncio.CancelledError:
        sealing.add_done_callback(_close_unwanted)  # a thread cannot be stopped
        raise


def _close_unwanted(sealing: asyncio.Future[SealedInput]) -> None:
    if not sealing.cancelled() and sealing.exception() is None:
        sealing.result().close()


def _seal_input(job: Job) -> SealedInput:
    fds: list[int] = []
    try:
        fds.append(seal("files", with_names(job.files, job.collect)))
        fds.append(seal("stdin", [job.stdin]))
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise ExecutorError(f"jail executor: {len(job.files)} files of a job cannot be sealed: {error}") from error
    return SealedInput(*fds)


def with_names(files: Mapping[str, bytes], collect: Sequence[str] = ()) -> list[bytes]:
    """Return the files for a slot: their contents, then their names and those to collect, each with a null behind it."""
    return [*files.values(), b"".join(name.encode() + b"\0" for name in (*files, *collect))]


def seal(name: str, chunks: Iterable[bytes]) -> int:
    """Return the descriptor, at offset 0, of a new file with the concatenated contents."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write_all(fd, [memoryview(chunk) for chunk in chunks if chunk])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_all(fd: int, pending: list[memoryview]) -> None:
    """Write at the start of the file, without moving its offset."""
    offset = 0
    while pending:
        written = os.pwritev(fd, pending[:_MAX_CHUNKS_PER_WRITE], offset)
        offset += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
