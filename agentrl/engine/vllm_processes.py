"""What one vLLM takes of the machine: processes, of which the first to end ends the engine, and sockets between them."""

import asyncio
import multiprocessing
import os
import secrets
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path

from agentrl.guardian import Guardian

_MARK = "AGENTRL_VLLM_MARK"


class VllmProcesses:
    """The processes of one vLLM, from its launch until it is ended; belongs to the running event loop.

    vLLM's core takes many seconds to start, and does not notice when the process that started it is killed: it would keep its
    memory for ever. A guardian ends it, from its first moment on.
    """

    def __init__(self) -> None:
        """Begin before the launch: whatever this process starts from now on is vLLM's."""
        self.socket_folder = tempfile.mkdtemp(prefix="vllm-")
        """vLLM's own sockets lie in the machine's folder for temporary files, for ever where it is killed."""
        self.down: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done as soon as one of the processes has ended, or `note_down` was called."""
        resource_tracker.ensure_running()  # without the mark: it is this process's own, which may go on without vLLM
        self._mark = secrets.token_hex(16)
        self._guardian = Guardian(mark=self._mark, temp_dir=Path(self.socket_folder))
        self._others = {child.pid for child in multiprocessing.active_children()}
        self._fds: list[int] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the processes are to start."""
        # vLLM gives its processes titles, which would be written over the environment in which the mark is looked for.
        return {"VLLM_RPC_BASE_PATH": self.socket_folder, _MARK: self._mark, "SPT_NOENV": "1"}

    def watch(self) -> None:
        """Watch what was launched.

        vLLM looks itself, but of several copies it first ends those that live, which takes a while and looks to their callers
        as if somebody had aborted their requests.
        """
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in self._others:
                self._fds.append(os.pidfd_open(child.pid))
                asyncio.get_running_loop().add_reader(self._fds[-1], self.note_down)

    def note_down(self) -> None:
        """Wake who awaits `down`, and stop watching: one is enough."""
        for fd in self._fds:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        if not self.down.done():
            self.down.set_result(None)

    async def end(self) -> None:
        """End what is left of the processes, and remove the sockets; when vLLM has been told to end."""
        await asyncio.to_thread(self._guardian.dismiss)
