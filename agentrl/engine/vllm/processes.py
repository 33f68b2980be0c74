"""Processes and sockets of one vLLM; the end of any process ends the engine."""

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
    """The processes of one vLLM; belongs to the running event loop.

    vLLM's core does not notice when its parent is killed, and would keep its memory for ever, so a guardian kills it.
    """

    def __init__(self) -> None:
        """Call it before the launch: children that this process starts afterwards are vLLM's."""
        self.socket_folder = tempfile.mkdtemp(prefix="vllm-")
        """Folder for vLLM's sockets; a killed vLLM would leave them in `/tmp`."""
        self.down: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once a process has ended, or `note_down` was called."""
        resource_tracker.ensure_running()  # before the mark is set: this process needs it after vLLM
        self._mark = secrets.token_hex(16)
        self._guardian = Guardian(mark=self._mark, temp_dir=Path(self.socket_folder))
        self._others = {child.pid for child in multiprocessing.active_children()}
        self._fds: list[int] = []

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for vLLM's processes."""
        # `SPT_NOENV`: process titles would overwrite the environment, which holds the mark.
        return {"VLLM_RPC_BASE_PATH": self.socket_folder, _MARK: self._mark, "SPT_NOENV": "1"}

    def watch(self) -> None:
        """Watch the launched processes.

        vLLM watches too, but first ends the living copies: this takes a while, and their callers see aborted requests.
        """
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in self._others:
                self._fds.append(os.pidfd_open(child.pid))
                asyncio.get_running_loop().add_reader(self._fds[-1], self.note_down)

    def note_down(self) -> None:
        """Set `down`, and stop watching."""
        for fd in self._fds:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        if not self.down.done():
            self.down.set_result(None)

    async def end(self) -> None:
        """Kill the remaining processes, and remove the sockets; call it after vLLM's own shutdown."""
        await asyncio.to_thread(self._guardian.dismiss)
