"""Tiers A, B and C: jobs run in slots of the jail, from warm interpreters."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from code_judge_server.jail.launch.plan import Plan
from code_judge_server.jail_executor.launcher import Launcher
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.meters import CgroupMeter, Meter, OomKills, TreeMeter
from code_judge_server.jail_executor.private_slot import PrivateSlot, kernel_counters
from code_judge_server.jail_executor.running_job import RunningJob
from code_judge_server.jail_executor.sealed_files import SealedInput, connected_pipes, seal_input
from code_judge_server.jail_executor.slot import Slot
from code_judge_server.jail_executor.watch import Watch
from code_judge_server.preload_sets import BARE
from code_judge_server.sandbox.executor import ExecutorError, ExecutorLoad, Job, Outcome
from code_judge_server.sandbox.job_pairs import PipeEnds, take_two
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import Canary, IsolationTier

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_PAUSE_BEFORE_LAST_ATTEMPT_S = 0.1
"""Pause, because the cause of one slot's death, such as the end of its zygote, may be about to kill the next."""
_TRUSTED_IN_PRIVATE_SLOT = 3
"""First processes below the slot of a session, whose mappings are not counted: the helper of the slot, the init of its job, and
the supervisor, which the judge of an ordinary user cannot read."""
_REPAIRS = 3
"""Repairs per request; the first may still see a dead process as alive."""
_FIRST_PAUSE_OF_REPAIRS_S = 0.05
_LONGEST_PAUSE_OF_REPAIRS_S = 5.0


class JailExecutor:
    """A fixed number of slots, each with one warm process per preload set; an `Executor` of tiers A to C.

    A slot that dies is restarted and its job is run once more. A launcher that dies takes all slots with it, and everything is
    restarted, once for all waiting jobs. The plan's last `num_private_slots` run no jobs, but are given out by
    `open_private_slot`.
    """

    def __init__(self, plan: Plan, *, canaries: Sequence[Canary], num_private_slots: int = 0) -> None:
        self.tier: IsolationTier = plan.tier
        self.memory_enforcement: Literal["cgroup", "sampled"] = "sampled" if plan.cgroups is None else "cgroup"
        self.canaries = canaries
        self.preloads: Mapping[str, Sequence[str]] = plan.preloads
        self.num_private_slots = num_private_slots
        self._plan = plan
        self._num_slots = plan.num_slots - num_private_slots
        self._launcher = Launcher(plan)  # works while the server continues to import
        self._slots: dict[tuple[int, str], Slot] = {}
        self._oom_kills = [OomKills(kernel_counters(plan.cgroups, number)[0]) for number in range(self._num_slots)]
        self._pairs = asyncio.Lock()
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()  # the last used slot is the warmest
        self._watch: Watch | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._next_repair: asyncio.TimerHandle | None = None
        self._pause_of_repairs_s = _FIRST_PAUSE_OF_REPAIRS_S
        self._closed = False
        self._num_rebuilt_slots = 0

    def load(self) -> ExecutorLoad:
        """Return the numbers of sleeping jobs and of replaced slots."""
        num_asleep = 0 if self._watch is None else self._watch.num_asleep
        return ExecutorLoad(num_asleep=num_asleep, num_rebuilt_slots=self._num_rebuilt_slots)

    async def start(self) -> None:
        """Start the slots.

        Raises:
            ExecutorError: the jail cannot be built.
        """
        self._watch = Watch(asyncio.get_running_loop())
        for number in range(self._num_slots):
            self._free.put_nowait(number)
        try:
            await self._launcher.wait_until_ready()
            await self._repair()
        except JailDiedError as error:
            await self.aclose()
            raise ExecutorError(f"jail executor: {error}") from error

    async def execute(self, job: Job) -> Outcome:
        """Run one job as soon as a slot is free; cancelling the call kills it.

        Raises:
            ExecutorError: slots died over it twice, or it cannot be sent.
        """
        preload = BARE  # a plain command runs there too
        if job.preload is not None and job.preload in self.preloads:
            preload = job.preload
        for attempt in range(_ATTEMPTS):
            if attempt > 0:
                await asyncio.sleep(_PAUSE_BEFORE_LAST_ATTEMPT_S)
            sealed = await seal_input(job)
            try:
                number = await self._free.get()
                running = await self._begin(job, sealed, number, preload)
            finally:
                sealed.close()
            try:
                return await running.outcome
            except asyncio.CancelledError:
                running.kill(Ending.CANCELLED)  # the slot is free only after it has answered
                raise
            except JailDiedError as error:
                if not self._closed:
                    logger.warning("slot %d (%s): %s", number, preload, error)
        raise ExecutorError(f"jail executor: {_ATTEMPTS} slots ({preload}) failed on one job; see the log")

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """See `Executor`; if a slot dies over either job, both are run once more."""
        if self._num_slots < len(jobs):
            raise ExecutorError("jail executor: two jobs at once need two slots: raise num_slots or spare_slots")
        for attempt in range(_ATTEMPTS):
            if attempt > 0:
                await asyncio.sleep(_PAUSE_BEFORE_LAST_ATTEMPT_S)
            running = await self._begin_pair(jobs)
            try:
                first, second = await asyncio.gather(*(job.outcome for job in running))
                return first, second
            except BaseException as error:
                for job in running:
                    job.kill(Ending.CANCELLED)
                if not isinstance(error, JailDiedError):
                    raise
                logger.warning("two slots (%s): a slot died during a pair of jobs: %s", BARE, error)
        raise ExecutorError(f"jail executor: slots died during a pair of jobs {_ATTEMPTS} times; see the log")

    async def _begin_pair(self, jobs: tuple[Job, Job]) -> list[RunningJob]:
        """Start two jobs, joined by pipes, as soon as two slots are free."""
        running: list[RunningJob] = []
        with contextlib.ExitStack() as stack:
            sealed: list[SealedInput] = []
            for job in jobs:
                sealed.append(await seal_input(job))
                stack.callback(sealed[-1].close)
            unused = list(await take_two(self._free, self._pairs))
            try:
                ends = connected_pipes()
                for end in ends:
                    stack.callback(end.close)
                for number in unused:  # first, because neither job's clock may wait for the other's slot
                    await self._living_slot(number, BARE)
                for job, item, end in zip(jobs, sealed, ends, strict=True):
                    running.append(await self._begin(job, item, unused.pop(0), BARE, partner=end))
            except BaseException as error:
                for number in unused:
                    self._free.put_nowait(number)
                for job in running:
                    job.kill(Ending.CANCELLED)
                if isinstance(error, OSError):
                    raise ExecutorError(f"jail executor: no pipes for two jobs: {error}") from error
                raise
        return running

    async def _begin(
        self, job: Job, sealed: SealedInput, number: int, preload: str, *, partner: PipeEnds | None = None
    ) -> RunningJob:
        """Start a job in a free slot, which is freed when nothing is left of the job, or when it does not start."""
        give_back = partial(self._free.put_nowait, number)
        try:
            slot = await self._living_slot(number, preload)
        except BaseException:
            give_back()
            raise
        interpret = job.preload == preload
        return slot.begin(
            job, sealed, interpret=interpret, on_idle=give_back, partner=partner
        )  # no `await`: the slot might die meanwhile

    async def open_private_slot(self, index: int, preload: str) -> PrivateSlot:
        """Start one of the `num_private_slots`, after repairing the jail; its predecessor must be gone.

        Raises:
            ExecutorError: it cannot be started, even after repairs, or the executor is closed.
        """
        number = self._num_slots + index
        failure: Exception | None = None
        for attempt in range(_REPAIRS + 1):  # as for the slot of a job
            if attempt > 0:
                await asyncio.sleep(_PAUSE_BEFORE_LAST_ATTEMPT_S)
            if not self._launcher.alive:
                await self._share_repair()
            try:
                return await self._open_private_slot(number, preload)
            except (JailDiedError, OSError) as error:
                logger.warning("slot %d (%s), for a session: %s", number, preload, error)
                failure = error
        raise ExecutorError(f"jail executor: no slot for a session: {failure}") from failure

    async def _open_private_slot(self, number: int, preload: str) -> PrivateSlot:
        end, pid = await self._launcher.open_slot(number, preload)
        with contextlib.ExitStack() as undo:
            undo.callback(end.close)
            meter = self._meter(number, pid, num_trusted=_TRUSTED_IN_PRIVATE_SLOT)
            undo.callback(meter.close)
            pidfd = os.pidfd_open(pid)
            undo.pop_all()
        end.setblocking(False)
        oom_kills, peak = kernel_counters(self._plan.cgroups, number)
        return PrivateSlot(end=end, pidfd=pidfd, meter=meter, oom_kills=oom_kills, peak=peak)

    async def aclose(self) -> None:
        """Kill all jobs, and leave no process, mount, cgroup or file behind."""
        self._closed = True
        if self._next_repair is not None:
            self._next_repair.cancel()
        if self._repairing is not None:
            self._repairing.cancel()
            await asyncio.wait([self._repairing])
        for slot in self._slots.values():
            slot.die("the server stops")
        if self._watch is not None:
            self._watch.close()
        await self._launcher.aclose()
        await asyncio.to_thread(self._plan.close)

    async def _living_slot(self, number: int, preload: str) -> Slot:
        """Return a slot, restarted if it is dead."""
        for _ in range(_REPAIRS + 1):
            slot = self._slots.get((number, preload))
            if slot is not None and slot.alive:
                return slot
            await self._share_repair()
        raise ExecutorError(
            f"jail executor: slot {number} ({preload}) died, and {_REPAIRS} repairs did not bring it back"
        )

    async def _share_repair(self) -> None:
        """Wait for the current repair, or start one; it may fail."""
        if self._closed:
            raise ExecutorError("jail executor: closed")
        await asyncio.wait([self._begin_repair()])

    def _begin_repair(self) -> asyncio.Task[None]:
        if self._repairing is None:
            self._repairing = asyncio.create_task(self._repair())
            self._repairing.add_done_callback(self._forget_repair)
        return self._repairing

    def _forget_repair(self, task: asyncio.Task[None]) -> None:
        self._repairing = None
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._pause_of_repairs_s = _FIRST_PAUSE_OF_REPAIRS_S
        else:
            logger.warning("jail executor: %s", error)
            self._pause_of_repairs_s = min(2 * self._pause_of_repairs_s, _LONGEST_PAUSE_OF_REPAIRS_S)
        if self._dead_slots():
            self._repair_soon()

    def _repair_soon(self) -> None:
        """Restart dead slots before a job needs them."""
        if self._closed or self._next_repair is not None:
            return

        def begin() -> None:
            self._next_repair = None
            self._begin_repair()

        self._next_repair = asyncio.get_running_loop().call_later(self._pause_of_repairs_s, begin)

    async def _repair(self) -> None:
        """Restart the launcher if it is dead, and every dead slot."""
        if not self._launcher.alive:
            logger.warning("jail executor: launcher died; restarting it with all slots")
            for slot in self._slots.values():
                slot.die("its launcher died")
            await self._launcher.aclose()
            self._launcher = Launcher(self._plan)
            await self._launcher.wait_until_ready()
        dead = self._dead_slots()
        at_once = len(self.preloads) * len(os.sched_getaffinity(0))
        for start in range(0, len(dead), at_once):
            opening = (self._open_slot(*slot) for slot in dead[start : start + at_once])
            results = await asyncio.gather(*opening, return_exceptions=True)  # none continues after this repair
            for error in filter(None, results):
                raise error

    def _dead_slots(self) -> list[tuple[int, str]]:
        slots = [(number, preload) for number in range(self._num_slots) for preload in self.preloads]
        return [slot for slot in slots if not self._is_alive(*slot)]

    def _is_alive(self, number: int, preload: str) -> bool:
        slot = self._slots.get((number, preload))
        return slot is not None and slot.alive

    async def _open_slot(self, number: int, preload: str) -> None:
        assert self._watch is not None, "started"
        end, pid = await self._launcher.open_slot(number, preload)
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(end.close)
                meter = self._meter(number, pid)
                undo.callback(meter.close)
                slot = Slot(
                    end,
                    pid=pid,
                    meter=meter,
                    watch=self._watch,
                    oom_kills=self._oom_kills[number],
                    on_death=self._repair_soon,
                )
                undo.pop_all()
            self._num_rebuilt_slots += (number, preload) in self._slots
            self._slots[number, preload] = slot
        except OSError as error:
            raise JailDiedError(f"slot {number} ({preload}) died at once: {error}") from error

    def _meter(self, number: int, pid: int, *, num_trusted: int = 0) -> Meter:
        cgroups = self._plan.cgroups
        if cgroups is None:
            return TreeMeter(pid, own_network=self.tier is not IsolationTier.C, num_trusted=num_trusted)
        return CgroupMeter(str(cgroups.cpu_file(number)))
