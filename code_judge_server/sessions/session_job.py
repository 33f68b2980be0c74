"""The job of one session: its program in a slot of its own, and the socket to it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from code_judge_server.jail import protocol
from code_judge_server.jail.python import notebook, notebook_display, session_files, session_main
from code_judge_server.jail_executor import messages
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.jail_executor.sealed_files import seal, with_names
from code_judge_server.limits import with_room_for
from code_judge_server.sandbox.executor import JobLimits

_CPU_TIME_S = 86400.0
"""CPU limit of one process of a session, enforced by the kernel; the server enforces the limit of each cell."""
_SAMPLED_MEMORY_FACTOR = 1.25
"""The rlimits that replace a memory limit are larger, so that the server's limit applies first."""
_OOM_SCORE_ADJ = 800
"""Less than that of a cell, which the kernel must kill first, and more than that of the slot."""
_END_TIMEOUT_S = 10.0
"""Time for a slot to kill its job; after it both are killed."""
_MESSAGES_AT_ONCE = 8
"""An honest session sends one message at a time."""
_SCRIPT = "main.py"
_START = b"from code_judge_server.jail.python.session_main import main\nmain()\n"
_MODULES = {
    f"{module.__name__.replace('.', '/')}.py": module
    for module in (notebook, notebook_display, session_files, session_main)
}
_PACKAGES = tuple(f"code_judge_server/{folder}__init__.py" for folder in ("", "jail/", "jail/python/"))
"""Empty files: otherwise the packages of an installed judge, which the program can read too, would be imported."""


class CellEnded(messages.JailMessage):
    """The end of a cell: nothing of it is left, except perhaps a snapshot."""

    kind: Literal["ended"]
    number: int
    """Number of the cell, as the server counts."""
    state: Literal["kept", "failed", "died", "gone", "refused"]
    exit_code: int | None
    signal: int | None
    wall_time_s: messages.Time
    """Duration by the session's clock, used where the server reads late; a false one can only hide what the server missed."""


_FROM_SESSION: TypeAdapter[messages.Ready | CellEnded] = TypeAdapter(messages.Ready | CellEnded)


class SessionPhase(IntEnum):
    """Life of a session: `STARTING -> OPEN -> CLOSING -> RELEASED -> GONE`; phases may be skipped, and none comes back."""

    STARTING = 1
    """Its job is sent; its program has not reported."""
    OPEN = 2
    """Cells can run."""
    CLOSING = 3
    """Its socket is closed, and its slot was told to kill the job."""
    RELEASED = 4
    """Its slot was released, and ends."""
    GONE = 5
    """Nothing of it is left; its place is free."""


class SessionJob:
    """A session's program, started at once; `close` ends it with everything in its slot.

    If `memory_is_sampled`, the server itself must enforce the limit. `on_death` is called once, when the program or its slot
    has ended, for whatever reason, and nothing of it is left.

    Raises:
        OSError: it cannot be started; the slot is closed.
    """

    def __init__(
        self,
        slot: PrivateSlot,
        *,
        python: str,
        limits: JobLimits,
        memory_is_sampled: bool,
        on_message: Callable[[messages.Ready | CellEnded], None],
        on_death: Callable[[], None],
    ) -> None:
        self.phase = SessionPhase.STARTING
        self.ended_by = ""
        """Reason of its end, if it was not closed by the server."""
        self._slot = slot
        self._on_message = on_message
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            undo.callback(on_death)
            undo.callback(slot.close)
            self._pidfd = os.dup(slot.pidfd)
            undo.callback(os.close, self._pidfd)
            self._end, theirs = protocol.socket_pair()
            undo.pop_all()
        self._end.setblocking(False)
        self._loop.add_reader(self._pidfd, self._forget)
        try:
            with theirs:
                self._start(theirs.fileno(), python, limits, memory_is_sampled)
        except OSError:
            self.close()
            self._kill_slot()  # it has no job yet whose end it could report
            raise
        self._loop.add_reader(self._end, self._take_messages)
        self._loop.add_reader(slot.end, self._on_slot_message)

    @property
    def alive(self) -> bool:
        """True if it runs, or starts."""
        return self.phase < SessionPhase.CLOSING

    def _advance(self, phase: SessionPhase) -> None:
        """Enter a later phase, and release what is not needed in it; only this changes the phase."""
        before, self.phase = self.phase, max(self.phase, phase)
        if before < SessionPhase.CLOSING <= phase:
            self._loop.remove_reader(self._end)
            self._end.close()
        if before < SessionPhase.RELEASED <= phase:
            self._loop.remove_reader(self._slot.end)
            self._slot.close()
        if before < SessionPhase.GONE <= phase:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._on_death()

    def send(self, message: protocol.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send it a message."""
        protocol.send(self._end, message, descriptors)

    def close(self) -> None:
        """Begin to end it, which takes a few milliseconds; does nothing the second time."""
        if not self.alive:
            return
        self._advance(SessionPhase.CLOSING)
        try:
            protocol.send(self._slot.end, {"kind": "kill"})
            self._loop.call_later(_END_TIMEOUT_S, self._kill_slot)
        except OSError:
            self._kill_slot()

    def _start(self, control: int, python: str, limits: JobLimits, memory_is_sampled: bool) -> None:
        files = {
            _SCRIPT: _START,
            **dict.fromkeys(_PACKAGES, b""),
            **{path: Path(str(module.__file__)).read_bytes() for path, module in _MODULES.items()},
        }
        memory_bytes = int(limits.memory_bytes * (_SAMPLED_MEMORY_FACTOR if memory_is_sampled else 1))
        message = {
            "kind": "job",
            "argv": [python, _SCRIPT],
            "interpret": True,
            "oom_score_adj": _OOM_SCORE_ADJ,
            "limits": {
                "cpu_time_s": _CPU_TIME_S,
                "memory_bytes": memory_bytes,
                "max_tasks": limits.max_tasks,
                "disk_bytes": with_room_for(limits, files).disk_bytes,
                "open_files_factor": session_main.OPEN_FILES_FACTOR,
            },
            "files": [len(content) for content in files.values()],
            "collect": 0,
            "collect_bytes": 0,
        }
        contents = seal("files", with_names(files))
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            protocol.send(self._slot.end, message, (contents, control, null, null))
        finally:
            os.close(contents)
            os.close(null)

    def _take_messages(self) -> None:
        try:
            for _ in range(_MESSAGES_AT_ONCE):
                if not self.alive or (message := messages.receive(self._end, _FROM_SESSION)) is None:
                    return
                self._advance(SessionPhase.OPEN)
                self._on_message(message)
        except JailDiedError as error:
            self._ended(str(error))
            self.close()

    def _on_slot_message(self) -> None:
        """Handle the slot's message, which is that the job has ended."""
        try:
            if (ended := messages.receive(self._slot.end, messages.END_OF_JOB)) is not None:
                self._ended(_described(ended))
        except JailDiedError as error:
            self._ended(f"slot: {error}")
        self._advance(SessionPhase.RELEASED)

    def _ended(self, reason: str) -> None:
        """Append a reason of its end, unless the server closed it; later reasons may explain more."""
        if self.alive or self.ended_by:
            self.ended_by = "; ".join(filter(None, (self.ended_by, reason)))

    def _kill_slot(self) -> None:
        """End a slot that may not even notice that its socket is closed."""
        if self.phase < SessionPhase.RELEASED:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._advance(SessionPhase.RELEASED)

    def _forget(self) -> None:
        """Handle the end of the slot's process."""
        if self.phase < SessionPhase.RELEASED:
            self._ended("its slot was killed")
        self._advance(SessionPhase.GONE)


def _described(ended: messages.Ended) -> str:
    if ended.error is not None:
        return f"it could not be set up: {ended.error}"
    if ended.oom_kills:
        return f"it had no memory left, and the kernel killed {ended.oom_kills} of its processes"
    return f"its first process ended by signal {ended.signal}" if ended.signal else f"it exited with {ended.exit_code}"
