"""One job in a slot: its input, its output, and its limits."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from code_judge_server.jail.protocol import Message
from code_judge_server.jail_executor.messages import Ended, JailDiedError
from code_judge_server.jail_executor.meters import Meter
from code_judge_server.jail_executor.sealed_files import SealedInput
from code_judge_server.sandbox.executor import Job, Outcome
from code_judge_server.sandbox.job_pairs import PipeEnds, bytes_in_pipe
from code_judge_server.sandbox.outcome import Ending

_READ_BYTES = 65536
"""Size of a pipe, so that one read mostly empties it."""


class OutputStream:
    """The read end of a pipe, and the output read from it."""

    __slots__ = ("_max_bytes", "_num_taken", "cut", "data", "fd")

    def __init__(self, fd: int, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.data = bytearray()
        self.cut = False
        """The output was longer than `max_bytes`."""
        self._max_bytes = max_bytes
        self._num_taken = 0

    def read(self) -> bool:
        """Read some of the pipe; return whether more may come, now or later."""
        return self._take() != 0

    def take_new_output(self) -> bytes:
        """Return the output since the last call."""
        start, self._num_taken = self._num_taken, len(self.data)
        return bytes(memoryview(self.data)[start:])

    def drain(self) -> None:
        """Read the rest of the pipe, which has no writer any more."""
        while (
            not self.cut and self._take()
        ):  # a short read may not be the last: a job can have put the pipe in packet mode
            pass

    def _take(self) -> int | None:
        """Return the number of bytes read, 0 if no writer is left, None if the pipe is empty."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        self.data += chunk
        if len(self.data) > self._max_bytes:
            del self.data[self._max_bytes :]
            self.cut = True
        return len(chunk)


FIRST_LOOK_S = 0.02
"""The pipes of a job that lives this long are watched; the output of a shorter one mostly fits into them."""
SAMPLE_INTERVAL_S = 0.05
ASLEEP_AFTER_SAMPLES = 2
ASLEEP_BELOW_CPU_SHARE = 0.1
"""A job is asleep if in a number of consecutive samples it used less of a core than this, and did not wait for one."""
ANSWER_TIMEOUT_S = 10.0
"""Time for a slot to end a job that it was told to kill."""


class RunningJob:
    """A job from its start until its outcome, in the one event loop.

    Args:
        job: The job to run.
        meter: Counts its resources.
        wants_core: Returns whether one of its threads is runnable, however little of a core it gets.
        kill: Tells the slot to end the job; the slot still answers.
        catch_up: Reads pending messages of the slot, such as the end of the job.
        give_up: Declares the slot dead, with a reason.
    """

    def __init__(
        self,
        job: Job,
        *,
        meter: Meter,
        wants_core: Callable[[], bool],
        kill: Callable[[], None],
        catch_up: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self._loop = loop
        self._job = job
        self._meter = meter
        self._wants_core = wants_core
        self._tell_slot_to_kill = kill
        self._catch_up = catch_up
        self._give_up = give_up
        self._ending: Ending | None = None
        self._peak_memory_bytes = 0
        self._num_idle_samples = 0
        self._collected: int | None = None
        self._partner_stdin: int | None = None
        self._streams: tuple[OutputStream, ...] = ()
        self._watches_streams = False
        self._started_at = time.monotonic()
        self._sampled_at = self._started_at
        self._sampled_cpu_time_s = 0.0
        self._deadline = self._started_at + job.limits.wall_time_s
        self.look_at = min(self._started_at + FIRST_LOOK_S, self._deadline)
        """Time of the next `look`, by `time.monotonic`; it happens at the first tick of the `Watch` after it."""

    @property
    def is_asleep(self) -> bool:
        """True if it has used hardly any CPU for a while, and does not wait for a core."""
        return self._num_idle_samples >= ASLEEP_AFTER_SAMPLES

    def send(
        self,
        send: Callable[[Message, tuple[int, ...]], None],
        sealed: SealedInput,
        *,
        interpret: bool,
        partner: PipeEnds | None = None,
    ) -> None:
        """Send the job to the slot, whose own interpreter may run the script `argv[1]`. `sealed` and `partner`, pipes to and
        from another job in place of stdin and stdout, stay open on this side.

        Raises:
            OSError: no descriptors are left, or the slot has ended.
            ProtocolError: the command, or the list of the files' sizes, is too long for one message.
        """
        job = self._job
        descriptors = [sealed.files, sealed.stdin if partner is None else partner.stdin]
        pipe_ends: list[int] = []
        try:
            for _ in range(2):
                read, write = os.pipe()
                pipe_ends.append(write)
                self._streams += (OutputStream(read, job.limits.output_bytes),)
                # A job has another user, and may open /dev/stdout as any program; but not for reading, which would never end.
                os.fchmod(write, 0o222)
            descriptors += pipe_ends if partner is None else (partner.stdout, pipe_ends[1])
            if partner is not None:
                self._partner_stdin = os.dup(partner.stdin)
            if job.collect:
                self._collected = os.memfd_create("collected", os.MFD_CLOEXEC)
                descriptors.append(self._collected)
            self._meter.restart()
            if job.spent is not None:
                job.spent.read_running_s = self._cpu_time_so_far_s
            send(self._message(interpret), tuple(descriptors))
        finally:
            for fd in pipe_ends:
                os.close(fd)

    def kill(self, reason: Ending) -> None:
        """Let the slot end the job with the ending `reason`; only the first reason counts.

        Does nothing once the job has ended: its slot may already run the next job, which would be killed.
        """
        if self._ending is None and self._streams:
            self._ending = reason
            self.look_at = time.monotonic() + ANSWER_TIMEOUT_S
            self._tell_slot_to_kill()

    def look(self, now: float) -> None:
        """Sample the job, and check the time limits of the job and its slot."""
        try:
            self._look(now)
        except OSError as error:  # such as no descriptor left for `/proc`: the limits could not be enforced
            self._give_up(f"a job cannot be watched: {error}")

    def _look(self, now: float) -> None:
        if self._ending is not None or now >= self._deadline:
            self._catch_up()  # the end may have arrived but not been read
            if not self._streams:
                return
        if self._ending is not None:
            self._give_up(f"it did not end a job within {ANSWER_TIMEOUT_S:g} s after a kill")
        elif now >= self._deadline:
            self.kill(Ending.WALL_TIME)
        elif not self._watches_streams:
            self._watches_streams = True
            for stream in self._streams:
                self._loop.add_reader(stream.fd, self._on_output, stream)
            self.look_at = min(self._started_at + SAMPLE_INTERVAL_S, self._deadline)
        else:
            self.look_at = min(now + SAMPLE_INTERVAL_S, self._deadline)
            self._sample(now)

    def finish(self, ended: Ended) -> None:
        """Accept the slot's report that the job has ended, and set the outcome.

        Raises:
            JailDiedError: the message contradicts the job.
        """
        if ended.error is not None and self._ending is None and not ended.oom_kills:
            self._settle(JailDiedError(f"a job could not be set up: {ended.error}"))
            return
        for stream in self._streams:
            stream.drain()
            self._tell_output(stream)
        stdout, stderr = self._streams
        cpu_time_s = self._cpu_time_s(ended)
        outcome = Outcome(
            ending=self._judged(ended, cpu_time_s),
            exit_code=ended.exit_code,
            signal=ended.signal,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            stdout_cut=stdout.cut,
            stderr_cut=stderr.cut,
            cpu_time_s=cpu_time_s,
            wall_time_s=self._wall_time_s(ended),
            peak_memory_bytes=self._peak(ended),
            files=self._collected_files(ended),
            files_cut=any(size is None for _, size in ended.collected),
            stdin_left_bytes=0 if self._partner_stdin is None else bytes_in_pipe(self._partner_stdin),
        )
        self._settle(outcome)

    def finish_for_memory(self) -> None:
        """Set the outcome of a job over whose memory the kernel killed the slot too; its end is otherwise unknown."""
        limit = self._job.limits.memory_bytes
        ended = Ended(
            kind="ended",
            exit_code=None,
            signal=int(signal.SIGKILL),
            cpu_time_s=0.0,
            wall_time_s=0.0,
            max_rss_bytes=limit,
            oom_kills=1,
            peak_memory_bytes=limit,
            collected=[],
            error=None,
            clears=False,
        )
        self.finish(ended)

    def fail(self, error: JailDiedError) -> None:
        """Set the slot's failure as the outcome."""
        self._settle(error)

    def abandon(self) -> None:
        """Drop a job that was never sent."""
        self.outcome.cancel()
        self._close()

    def _message(self, interpret: bool) -> Message:
        job, limits = self._job, self._job.limits
        return {
            "kind": "job",
            "argv": job.argv,
            "interpret": interpret,
            "limits": {
                "cpu_time_s": limits.cpu_time_s,
                "memory_bytes": limits.memory_bytes,
                "max_tasks": limits.max_tasks,
                "disk_bytes": limits.disk_bytes,
            },
            "files": [len(content) for content in job.files.values()],
            "collect": len(job.collect),
            "collect_bytes": job.collect_bytes,
        }

    def _sample(self, now: float) -> None:
        limits = self._job.limits
        usage = self._meter.read(memory_bytes=limits.memory_bytes, max_tasks=limits.max_tasks)
        cpu_share = (usage.cpu_time_s - self._sampled_cpu_time_s) / (now - self._sampled_at)
        # On a crowded machine a computing program gets little CPU too: starting others would crowd it more.
        is_idle = cpu_share < ASLEEP_BELOW_CPU_SHARE and not self._wants_core()
        self._num_idle_samples = self._num_idle_samples + 1 if is_idle else 0
        self._sampled_at, self._sampled_cpu_time_s = now, usage.cpu_time_s
        self._peak_memory_bytes = max(self._peak_memory_bytes, usage.measured_bytes)
        if usage.memory_bytes > limits.memory_bytes:
            self.kill(Ending.MEMORY)
        elif usage.num_tasks > limits.max_tasks:
            self.kill(Ending.TASKS)
        elif usage.cpu_time_s > limits.cpu_time_s:
            self.kill(Ending.CPU_TIME)

    def _on_output(self, stream: OutputStream) -> None:
        if not stream.read():
            self._loop.remove_reader(stream.fd)
        self._tell_output(stream)
        if stream.cut:
            self.kill(Ending.OUTPUT)

    def _tell_output(self, stream: OutputStream) -> None:
        if self._job.on_output is not None and (new := stream.take_new_output()):
            self._job.on_output("stdout" if stream is self._streams[0] else "stderr", new)

    def _judged(self, ended: Ended, cpu_time_s: float) -> Ending:
        ending = self._ending or self._judged_by_totals(ended, cpu_time_s)
        if ended.oom_kills and ending in (Ending.CPU_TIME, Ending.WALL_TIME):
            return Ending.MEMORY  # it waited in vain for a process that the kernel killed
        failed = ending is Ending.EXITED and ended.exit_code != 0
        if ended.tasks_refused and (failed or ending in (Ending.CPU_TIME, Ending.WALL_TIME)):
            return Ending.TASKS  # the refusal ended it
        return ending

    def _judged_by_totals(self, ended: Ended, cpu_time_s: float) -> Ending:
        """Return the ending of a job that ended by itself, perhaps beyond a limit that no sample had seen."""
        limits = self._job.limits
        if any(stream.cut for stream in self._streams):
            return Ending.OUTPUT
        if ended.oom_kills or (ended.oom_kills is None and self._peak(ended) > limits.memory_bytes):
            return Ending.MEMORY
        if cpu_time_s > limits.cpu_time_s:
            return Ending.CPU_TIME
        if ended.wall_time_s > limits.wall_time_s:  # by the slot's clock, however late the message is read
            return Ending.WALL_TIME
        return Ending.EXITED

    def _cpu_time_s(self, ended: Ended) -> float:
        """Return the CPU time of the whole job; the slot's count lacks processes that the job did not wait for."""
        if self._sampled_at == self._started_at:
            return ended.cpu_time_s  # too short for a sample
        limits = self._job.limits
        usage = self._meter.read(memory_bytes=limits.memory_bytes, max_tasks=limits.max_tasks)
        return max(ended.cpu_time_s, self._sampled_cpu_time_s, usage.cpu_time_s)

    def _wall_time_s(self, ended: Ended) -> float:
        """Return the program's wall clock; for a killed or lost job, the time until its kill or the slot's death."""
        if self._ending is None and not ended.oom_kills:
            return ended.wall_time_s
        return time.monotonic() - self._started_at

    def _cpu_time_so_far_s(self) -> float:
        limits = self._job.limits
        try:
            usage = self._meter.read(memory_bytes=limits.memory_bytes, max_tasks=limits.max_tasks)
        except OSError:
            return self._sampled_cpu_time_s
        return max(self._sampled_cpu_time_s, usage.cpu_time_s)

    def _peak(self, ended: Ended) -> int:
        if ended.peak_memory_bytes is not None:
            return ended.peak_memory_bytes
        return max(ended.max_rss_bytes, self._peak_memory_bytes)

    def _collected_files(self, ended: Ended) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        offset = 0
        for index, size in ended.collected:
            if size is None:
                continue
            if self._collected is None or index >= len(self._job.collect) or offset + size > self._job.collect_bytes:
                raise JailDiedError(f"it returned file {index} of {size} bytes, which was not requested")
            files[self._job.collect[index]] = os.pread(self._collected, size, offset)
            offset += size
        return files

    def _settle(self, outcome: Outcome | JailDiedError) -> None:
        self._close()
        if self.outcome.done():
            return  # cancelled: nobody waits for it
        if isinstance(outcome, JailDiedError):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)

    def _close(self) -> None:
        if self._job.spent is not None:
            self._job.spent.read_running_s = None
        for stream in self._streams:
            if self._watches_streams:
                self._loop.remove_reader(stream.fd)
            os.close(stream.fd)
        self._streams = ()
        for descriptor in (self._collected, self._partner_stdin):
            if descriptor is not None:
                os.close(descriptor)
        self._collected = self._partner_stdin = None
