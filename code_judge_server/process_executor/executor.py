"""Tier D: each program is a process of its own with limits, but without isolation from the machine.

It bounds time, memory, output, processes and file sizes, and leaves nothing running. It does NOT isolate: a program can
read and write the files of the server's user, use the network, and signal the server. If the server is root, programs are an
ordinary user.

    server ── socket pair ──> slot (one per concurrent program, `main`) ──> program ──> its children

The server never forks a program itself. A slot that dies is replaced and its program is run once more; a server that dies
closes the sockets, and each slot then kills its program, removes its files and ends.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from code_judge_server.jail.kernel import orphans
from code_judge_server.jail.kernel.slot_users import first_user_of_any
from code_judge_server.process_executor import frames
from code_judge_server.sandbox import process_tree, work_folder
from code_judge_server.sandbox.executor import ExecutorError, ExecutorLoad, Job, Outcome, OutputName
from code_judge_server.sandbox.job_pairs import take_two
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import Canary, IsolationTier

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
SLOT_START_TIMEOUT_S = 10.0
SLOT_REPLY_GRACE_S = 10.0
"""Time by which a slot may exceed its program's wall clock before it is treated as dead."""
SLOT_STOP_TIMEOUT_S = 0.8
ORPHAN_KILL_ROUNDS = 100
ORPHAN_KILL_PAUSE_S = 0.001

_SLOT_COMMAND = (
    "import sys; sys.path.append(sys.argv[1]); from code_judge_server.process_executor.main import serve; "
    "serve(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))"
)
_SLOT_START = (sys.executable, "-I", "-S", "-c")
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class SlotDiedError(Exception):
    """A slot closed its socket or did not answer."""


class ProcessExecutor:
    """A fixed pool of slots; an `Executor` of tier D.

    It reaps all children that its process gets after the start: orphans of a dead slot are handed to this process and killed.
    So it belongs into a server process, not into a program that starts other children.
    """

    tier: IsolationTier = IsolationTier.D
    memory_enforcement: Literal["cgroup", "sampled"] = "sampled"
    preloads: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, *, num_slots: int, work_dir: Path | None, canaries: Sequence[Canary] = ()) -> None:
        self.canaries = canaries
        self._num_slots = num_slots
        self._work_dir = work_dir
        self._folder: Path | None = None
        self._slots: dict[int, _Slot] = {}
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._pairs = asyncio.Lock()
        self._running: set[asyncio.Task[Outcome]] = set()
        self._not_ours: set[int] = set()
        self._num_rebuilt_slots = 0

    def load(self) -> ExecutorLoad:
        """Return the number of replaced slots; sleeping programs are not known here."""
        return ExecutorLoad(num_rebuilt_slots=self._num_rebuilt_slots)

    async def start(self) -> None:
        """Start the slots.

        Raises:
            ExecutorError: a slot does not start.
        """
        self._not_ours = set(process_tree.children(os.getpid()))
        orphans.adopt()
        self._folder = _make_temporary_folder(self._work_dir)
        first_uid = first_user_of_any(self._num_slots)
        slots = [_Slot(self._folder / f"slot-{number}", uid=first_uid + number) for number in range(self._num_slots)]
        self._slots = dict(enumerate(slots))
        try:
            may_read_all = await asyncio.gather(*(slot.wait_until_ready() for slot in slots))
        except SlotDiedError as error:
            await self.aclose()
            raise ExecutorError(f"process executor: a slot does not start: {error}; see its output above") from error
        if any(may_read_all):
            logger.warning(
                "tier D of root: programs may read every file of this machine, since no ordinary user may run %s. Put the "
                "interpreter where everybody can read it, or start the judge as an ordinary user",
                sys.executable,
            )
        for number in self._slots:
            self._free.put_nowait(number)

    async def execute(self, job: Job) -> Outcome:
        """Run one job as soon as a slot is free; cancelling the call kills it.

        Raises:
            ExecutorError: two slots in a row died over it, or no new slot could be started.
        """
        return await self._execute_in(await self._free.get(), job, _pack(job))

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """See `Executor`; if a slot dies over either job, both are run once more."""
        if self._num_slots < len(jobs):
            raise ExecutorError("process executor: two jobs at once need two slots: raise num_slots or spare_slots")
        errors: list[Exception] = []
        for _ in range(_ATTEMPTS):
            try:
                return await self._execute_pair_once(jobs)
            except* (ExecutorError, OSError) as group:  # OSError: no folder for the pipes
                errors += group.exceptions
        raise ExecutorError(f"process executor: one of two jobs failed: {errors[-1]}") from errors[-1]

    async def _execute_pair_once(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        assert self._folder is not None, "started"
        self._ensure_folder()
        folder = tempfile.mkdtemp(prefix="pair-", dir=self._folder)
        try:
            to_first, to_second = (os.path.join(folder, name) for name in ("to-first", "to-second"))
            for fifo in (to_first, to_second):
                os.mkfifo(fifo)
                os.chmod(
                    fifo, 0o666
                )  # programs of two users may open /dev/stdin and /dev/stdout; nobody reaches the pipes by name
            # Both open the same pipe first: opening it waits for the other end.
            ends = [(to_first, "stdin"), (to_second, "stdout")], [(to_first, "stdout"), (to_second, "stdin")]
            numbers = await take_two(self._free, self._pairs)
            async with asyncio.TaskGroup() as group:
                first, second = (
                    group.create_task(self._execute_in(number, job, _pack(job, fifos), attempts=1))
                    for number, job, fifos in zip(numbers, jobs, ends, strict=True)
                )
            return first.result(), second.result()
        finally:
            await asyncio.to_thread(work_folder.remove, folder)

    async def _execute_in(self, number: int, job: Job, message: bytes, *, attempts: int = _ATTEMPTS) -> Outcome:
        given_up = asyncio.Event()
        task = asyncio.create_task(self._execute_on(number, job, message, attempts=attempts, given_up=given_up))
        self._running.add(task)
        task.add_done_callback(lambda _: self._release(task, number))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up.set()
            self._slots[number].cancel()  # the slot is free only after it has answered
            raise

    async def aclose(self) -> None:
        """Kill all programs, and leave no process and no file behind."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(slot.stop() for slot in self._slots.values()))
        await self._kill_orphans()
        if self._folder is not None:
            await asyncio.to_thread(work_folder.remove, str(self._folder))

    def _release(self, task: asyncio.Task[Outcome], number: int) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, if there still is one
        self._free.put_nowait(number)

    async def _execute_on(
        self, number: int, job: Job, message: bytes, *, attempts: int, given_up: asyncio.Event
    ) -> Outcome:
        timeout_s = job.limits.wall_time_s + SLOT_REPLY_GRACE_S
        for _ in range(attempts):
            slot = self._slots[number]
            try:
                if not slot.alive:
                    slot = await self._rebuild(number)
                if given_up.is_set():
                    break
                return await slot.run(message, timeout_s=timeout_s, on_output=job.on_output)
            except (SlotDiedError, OSError) as error:  # OSError: no processes or disk space for a new one
                logger.warning("slot %d: %s; replacing it", number, error)
                await self._slots[number].stop()
                await self._kill_orphans()
        raise ExecutorError(f"process executor: slot {number} died during one program, or could not be replaced")

    async def _rebuild(self, number: int) -> "_Slot":
        folder, uid = self._slots[number].folder, self._slots[number].uid
        self._ensure_folder()
        await asyncio.to_thread(work_folder.remove, str(folder))
        slot = self._slots[number] = _Slot(folder, uid=uid)
        self._num_rebuilt_slots += 1
        await slot.wait_until_ready()
        return slot

    def _ensure_folder(self) -> None:
        """Create the folder of all slots if a program has removed it."""
        work_folder.ensure(str(self._folder), lets_users_through=os.geteuid() == 0)

    async def _kill_orphans(self) -> None:
        """Kill the orphans of dead slots, which were handed to this process and have their own session."""
        for _ in range(ORPHAN_KILL_ROUNDS):
            orphans = self._orphans()
            if not orphans:
                return
            for pid in orphans:
                process_tree.kill(pid)
            await asyncio.sleep(ORPHAN_KILL_PAUSE_S)
            _collect(orphans)
        if orphans := self._orphans():
            logger.warning("processes %s: left by a dead slot, killed, but still running", orphans)

    def _orphans(self) -> list[int]:
        kept = self._not_ours | {slot.pid for slot in self._slots.values()}
        return [pid for pid in process_tree.children(os.getpid()) if pid not in kept and _is_foreign(pid)]


def _pack(job: Job, fifos: Sequence[tuple[str, str]] = ()) -> bytes:
    header: frames.Header = {
        "kind": "job",
        "argv": job.argv,
        "limits": asdict(job.limits),
        "file_names": list(job.files),
        "collect": job.collect,
        "collect_bytes": job.collect_bytes,
        "fifos": fifos,
        "live": job.on_output is not None,
    }
    return frames.pack(header, [job.stdin, *job.files.values()])


def _make_temporary_folder(parent: Path | None) -> Path:
    # Resolved: a link found in its place later was made by a program.
    return Path(tempfile.mkdtemp(prefix="code-judge-", dir=parent)).resolve()


def _collect(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # already reaped for another slot
            os.waitpid(pid, os.WNOHANG)


def _is_foreign(pid: int) -> bool:
    try:
        return os.getsid(pid) != os.getsid(0)
    except ProcessLookupError:
        return False


class _Slot:
    """One slot process, started at once, and the server's end of its socket."""

    def __init__(self, folder: Path, *, uid: int) -> None:
        self.folder = folder
        self.uid = uid
        """User of its programs, if this process is root."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_SLOT_START, _SLOT_COMMAND, _PACKAGE_PARENT, str(theirs.fileno()), str(folder), str(uid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the server alone handles a Ctrl-C in its terminal
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._streams is not None and self._process.poll() is None

    async def wait_until_ready(self) -> bool:
        """Connect and take the slot's first message; return whether its programs may read every file."""
        self._streams = await asyncio.open_unix_connection(sock=self._socket)
        header, _ = await self._receive(timeout_s=SLOT_START_TIMEOUT_S)
        return header["may_read_all"]

    async def run(
        self, message: bytes, *, timeout_s: float, on_output: Callable[[OutputName, bytes], None] | None = None
    ) -> Outcome:
        """Send one job and return its outcome; `on_output` is called with its output while it runs.

        Raises:
            SlotDiedError: the slot dies or does not answer within `timeout_s`.
        """
        self._send(message)
        header, blobs = await self._receive(timeout_s=timeout_s)
        while header["kind"] == "output":
            if on_output is not None:
                on_output(header["name"], blobs[0])
            header, blobs = await self._receive(timeout_s=timeout_s)
        stdout, stderr, *contents = blobs
        del header["kind"]
        files = dict(zip(header.pop("file_names"), contents, strict=True))
        return Outcome(ending=Ending(header.pop("ending")), stdout=stdout, stderr=stderr, files=files, **header)

    def cancel(self) -> None:
        """Let the slot kill its program, if it runs one; `run` still returns an outcome."""
        self._send(frames.CANCEL)

    async def stop(self) -> None:
        """Close the socket, so that the slot cleans up and ends; kill it if it does not end."""
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].close()
        try:
            await asyncio.to_thread(self._process.wait, SLOT_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _send(self, message: bytes) -> None:
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(message)

    async def _receive(self, *, timeout_s: float) -> tuple[frames.Header, list[bytes]]:
        if self._streams is None:
            raise SlotDiedError("it never connected")
        reader = self._streams[0]
        try:
            async with asyncio.timeout(timeout_s):
                text_size, payload_size = frames.PREFIX.unpack(await reader.readexactly(frames.PREFIX.size))
                text = await reader.readexactly(text_size)
                return frames.unpack(text, await reader.readexactly(payload_size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise SlotDiedError("it closed its socket") from error
        except TimeoutError as error:
            raise SlotDiedError(f"no answer within {timeout_s:g} s") from error
