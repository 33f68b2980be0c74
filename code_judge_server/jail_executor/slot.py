"""The server's end of one slot: it runs one job at a time, and is treated as dead after anything unexpected."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from enum import StrEnum

from code_judge_server.jail import protocol
from code_judge_server.jail_executor import messages
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.meters import Meter, OomKills
from code_judge_server.jail_executor.running_job import RunningJob
from code_judge_server.jail_executor.sealed_files import SealedInput
from code_judge_server.jail_executor.watch import Watch
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.executor import ExecutorError, Job
from code_judge_server.sandbox.job_pairs import PipeEnds

_MOST_LOOKED_AT = 64
"""Most threads of an idle job that are read, one file each: a job may have hundreds that sleep."""


class SlotState(StrEnum):
    """Life of a slot: `IDLE -> RUNNING -> IDLE -> ...`, in tier C `IDLE -> RUNNING -> CLEARING -> IDLE -> ...`.

    `DEAD` may follow any of them, and nothing follows it.
    """

    IDLE = "idle"
    RUNNING = "running"
    """A job has been sent, and its end is not known."""
    CLEARING = "clearing"
    """The slot removes the files of a job that already has its outcome; no timeout applies, and its death is seen."""
    DEAD = "dead"


class Slot:
    """One slot of the jail: a process that forks jobs from a warm interpreter; `end` and `meter` are closed with it."""

    def __init__(
        self,
        end: socket.socket,
        *,
        pid: int,
        meter: Meter,
        watch: Watch,
        oom_kills: OomKills,
        on_death: Callable[[], None],
    ) -> None:
        end.setblocking(False)
        self.state = SlotState.IDLE
        self._end = end
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._meter = meter
        self._watch = watch
        self._oom_kills = oom_kills
        self._on_death = on_death
        self._running: RunningJob | None = None
        self._on_idle: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._take_messages)

    @property
    def alive(self) -> bool:
        """True if it can run jobs, now or later."""
        return self.state is not SlotState.DEAD

    def _enter(self, state: SlotState) -> None:
        """Change the state, as nothing else does; forget an ended job, and tell the owner when nothing of it is left."""
        self.state = state
        if state is not SlotState.RUNNING and self._running is not None:
            self._watch.remove(self._running)
            self._running = None
        if state in (SlotState.IDLE, SlotState.DEAD) and self._on_idle is not None:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def begin(
        self,
        job: Job,
        sealed: SealedInput,
        *,
        interpret: bool,
        on_idle: Callable[[], None],
        partner: PipeEnds | None = None,
    ) -> RunningJob:
        """Start a job; the slot must be alive and idle. `on_idle` is called once when nothing of the job is left in it,
        possibly long after its outcome; the other arguments are those of `RunningJob.send`.

        Raises:
            ExecutorError: no slot could run it; the slot is idle, and `on_idle` was called.
        """
        running = RunningJob(
            job,
            meter=self._meter,
            wants_core=self._wants_core,
            kill=self._kill_job,
            catch_up=self._take_messages,
            give_up=self.die,
        )
        self._running, self._on_idle = running, on_idle
        self._enter(SlotState.RUNNING)
        try:
            running.send(self._send, sealed, interpret=interpret, partner=partner)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
            self.die(f"it accepts no job: {error}")
        except (OSError, protocol.ProtocolError) as error:
            running.abandon()
            self._enter(SlotState.IDLE)
            raise ExecutorError(
                f"jail executor: a job of {len(job.files)} files cannot be handed over: {error}"
            ) from error
        else:
            self._watch.add(running)
        return running

    def die(self, reason: str) -> None:
        """Kill the slot and everything in it, and fail its job; does nothing if it is already dead."""
        if not self.alive:
            return
        self._loop.remove_reader(self._end)
        self._end.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        if self._running is not None:
            self._fail(self._running, reason)
        self._enter(SlotState.DEAD)
        self._meter.close()
        self._on_death()

    def _fail(self, running: RunningJob, reason: str) -> None:
        try:
            if self._oom_kills.take_new():
                running.finish_for_memory()  # the job would kill the next slot too
                return
        except OSError as error:
            reason = f"{reason}, and its control group cannot be read: {error}"
        running.fail(JailDiedError(reason))

    def _send(self, message: protocol.Message, descriptors: tuple[int, ...] = ()) -> None:
        messages.send(self._end, message, descriptors)

    def _kill_job(self) -> None:
        try:
            self._send({"kind": "kill"})
        except OSError as error:
            self.die(f"it accepts no kill: {error}")

    def _wants_core(self) -> bool:
        return process_tree.any_runnable(
            process_tree.descendants(self._pid, at_most=_MOST_LOOKED_AT), at_most=_MOST_LOOKED_AT
        )

    def _take_messages(self) -> None:
        """Read all messages that have arrived."""
        try:
            while self.alive and (self._take_cleared() if self.state is SlotState.CLEARING else self._take_ended()):
                pass
        except JailDiedError as error:
            self.die(str(error))
        except OSError as error:
            self.die(f"the rest of a job's output cannot be read: {error}")

    def _take_ended(self) -> bool:
        """Finish the job if the slot has reported its end; return whether it has."""
        ended = messages.receive(self._end, messages.END_OF_JOB)
        if ended is None:
            return False
        if self._running is None:
            raise JailDiedError("it ended a job that it never got")
        if ended.oom_kills:
            self._oom_kills.take_new()
        self._running.finish(ended)
        self._enter(SlotState.CLEARING if ended.clears else SlotState.IDLE)
        return True

    def _take_cleared(self) -> bool:
        """Become idle if the slot has reported that its last job is cleared; return whether it has."""
        if messages.receive(self._end, messages.END_OF_CLEARING) is None:
            return False
        self._enter(SlotState.IDLE)
        return True
