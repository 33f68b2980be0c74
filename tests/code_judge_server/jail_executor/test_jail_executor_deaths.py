"""Parts of the jail that die while the executor has jobs: no job is lost, dead parts are rebuilt, and nothing is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from executor_jobs import (
    BEGUN,
    FOREVER,
    TIERS,
    below,
    kill_slots,
    launchers,
    python,
    run_all,
    slots,
    started_executor,
    tier_or_skip,
    until_begun,
)
from jail_tiers import NAMESPACE_TIERS
from judge_process import until, wait_until

from code_judge_server.jail.launch.plan import make_plan
from code_judge_server.jail_executor import executor as executor_module
from code_judge_server.jail_executor import running_job
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.executor import ExecutorError
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import IsolationTier


@pytest.fixture(scope="module", params=[TIERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TIERS[1:])])
def tier(request: pytest.FixtureRequest) -> IsolationTier:
    return tier_or_skip(request.param)


@pytest.fixture
async def executor(tier: IsolationTier) -> AsyncIterator[JailExecutor]:
    async with started_executor(tier) as executor:
        yield executor


async def test_the_job_of_a_killed_slot_is_run_once_more(executor: JailExecutor, tier: IsolationTier) -> None:
    task = asyncio.create_task(executor.execute(python(f"{BEGUN}time.sleep(1); print('done')")))
    await until_begun(1)
    kill_slots()
    outcome = await task
    assert (outcome.ending, outcome.stdout) == (Ending.EXITED, b"done\n")
    assert executor.load().num_rebuilt_slots >= 1


async def test_a_job_that_kills_two_slots_is_an_executor_error(executor: JailExecutor) -> None:
    task = asyncio.create_task(executor.execute(python(FOREVER)))
    async with asyncio.timeout(60):
        while not task.done():
            await asyncio.sleep(0.3)
            for pid in slots():
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(ExecutorError):
        task.result()
    assert (await executor.execute(python("print(1)"))).stdout == b"1\n"


async def test_dead_slots_are_restarted_before_a_job_needs_them(executor: JailExecutor) -> None:
    num_slots = len(slots())
    for pid in slots():
        os.kill(pid, signal.SIGKILL)
    await until(lambda: executor.load().num_rebuilt_slots >= num_slots)
    assert (await executor.execute(python("print(1)"))).stdout == b"1\n"
    assert executor.load().num_rebuilt_slots == num_slots


async def test_a_stopped_slot_is_replaced(executor: JailExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_job, "ANSWER_TIMEOUT_S", 0.3)
    for pid in slots():
        os.kill(pid, signal.SIGSTOP)
    outcome = await executor.execute(python("print(1)", wall_time_s=3))
    assert (outcome.ending, outcome.stdout) == (Ending.EXITED, b"1\n")


@pytest.mark.parametrize("generation", [0, 1])
async def test_jobs_survive_the_death_of_the_launcher(executor: JailExecutor, generation: int) -> None:
    jobs = [python(f"{BEGUN}time.sleep(1); print({number})") for number in range(4)]
    task = asyncio.ensure_future(run_all(executor, *jobs))
    await until_begun(2)
    (launcher,) = launchers()
    os.kill(below(launcher, generation)[0], signal.SIGKILL)
    assert [outcome.stdout for outcome in await task] == [f"{number}\n".encode() for number in range(4)]
    assert len(launchers()) == 1
    assert launchers() != [launcher]


@pytest.mark.parametrize("generation", [0, 2])
async def test_a_private_slot_opens_although_launcher_or_zygote_just_died(tier: IsolationTier, generation: int) -> None:
    plan = make_plan(tier, num_slots=2, preloads={"bare": ()})
    executor = JailExecutor(plan, canaries=(), num_private_slots=1)
    await executor.start()
    try:
        (launcher,) = launchers()
        os.kill(below(launcher, generation)[0], signal.SIGKILL)
        slot = await executor.open_private_slot(0, "bare")
        slot.close()
    finally:
        await executor.aclose()


async def test_a_job_whose_memory_killed_its_slot_exceeds_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_kills = 0
    monkeypatch.setattr(executor_module, "kernel_counters", lambda *_: (lambda: num_kills, lambda: 0))
    async with started_executor(tier_or_skip(NAMESPACE_TIERS[0]), num_slots=1) as executor:
        (slot,) = slots()
        task = asyncio.create_task(executor.execute(python(f"print(1, flush=True)\n{FOREVER}")))
        await until_begun(1)
        num_kills = 1
        os.kill(slot, signal.SIGKILL)
        outcome = await task
        assert (outcome.ending, outcome.stdout, outcome.signal) == (Ending.MEMORY, b"1\n", signal.SIGKILL)
        assert (await executor.execute(python("print(2)"))).stdout == b"2\n"


async def test_closing_it_leaves_nothing(tier: IsolationTier) -> None:
    def held() -> tuple[list[str], set[int], list[str]]:
        descriptors = sorted(os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.name != "99")
        groups = [str(folder) for folder in Path("/sys/fs/cgroup").glob(f"**/code-judge-{os.getpid()}-*")]
        return [kind.partition(":")[0] for kind in descriptors], set(process_tree.children(os.getpid())), groups

    before = held()
    executor = JailExecutor(make_plan(tier, num_slots=2, preloads={"bare": ()}), canaries=())
    await executor.start()
    tasks = [asyncio.create_task(executor.execute(python(FOREVER))) for _ in range(3)]
    await until_begun(2)
    await executor.aclose()
    failed = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, ExecutorError) for error in failed)
    wait_until(lambda: held() == before)


async def test_a_jail_that_cannot_be_built_is_refused(tier: IsolationTier) -> None:
    plan = make_plan(tier, num_slots=1, preloads={"broken": ("no_such_module_at_all",)})
    executor = JailExecutor(plan, canaries=())
    with pytest.raises(ExecutorError):
        await executor.start()
    assert launchers() == []
