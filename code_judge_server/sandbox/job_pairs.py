"""Two jobs that talk to each other: the ends of their pipes, and two free slots."""

import array
import asyncio
import fcntl
import os
import termios
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeEnds:
    """Pipe descriptors that one of the two jobs has in place of stdin and stdout."""

    stdin: int
    stdout: int

    def close(self) -> None:
        """Close both."""
        os.close(self.stdin)
        os.close(self.stdout)


def bytes_in_pipe(end: int) -> int:
    """Return the number of bytes in a pipe that have not been read."""
    count = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, count)
    return count[0]


async def take_two(free: asyncio.Queue[int], turn: asyncio.Lock) -> tuple[int, int]:
    """Take two of the free slots, holding `turn`: else two callers with one slot each would wait for each other."""
    async with turn:
        first = await free.get()
        try:
            return first, await free.get()
        except BaseException:
            free.put_nowait(first)
            raise
