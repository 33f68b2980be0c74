"""What one vLLM takes of the machine: processes, of which the first to end ends the engine, and sockets between them."""

import asyncio
import multiprocessing
import os
import shutil
import tempfile


class VllmProcesses:
    """The processes of one vLLM, from its launch until it is ended; belongs to the running event loop."""

    def __init__(self) -> None:
        """Begin before the launch: whatever this process starts from now on is vLLM's."""
        self.socket_folder = tempfile.mkdtemp(prefix="vllm-")
        """vLLM's own sockets lie in the machine's folder for temporary files, for ever where it is killed."""
        self.down: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done as soon as one of the processes has ended, or `note_down` was called."""
        self._others = {child.pid for child in multiprocessing.active_children()}
        self._fds: list[int] = []

    def watch(self) -> list[int]:
        """Watch what was launched, and return its process ids in the order in which they were started.

        vLLM looks itself, but of several copies it first ends those that live, which takes a while and looks to their callers
        as if somebody had aborted their requests.
        """
        started = [child.pid for child in multiprocessing.active_children() if child.pid not in self._others]
        pids = sorted(pid for pid in started if pid is not None)
        for pid in pids:
            self._fds.append(os.pidfd_open(pid))
            asyncio.get_running_loop().add_reader(self._fds[-1], self.note_down)
        return pids

    def note_down(self) -> None:
        """Wake who awaits `down`, and stop watching: one is enough."""
        for fd in self._fds:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        if not self.down.done():
            self.down.set_result(None)

    def remove_sockets(self) -> None:
        """Remove what is left of the sockets; when vLLM has ended."""
        shutil.rmtree(self.socket_folder, ignore_errors=True)
