"""A server that reads messages late: its delay excuses no program beyond its limit, and is charged to none."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from executor_jobs import BEGUN, TIERS, num_begun, python, started_executor, tier_or_skip, until_begun
from judge_in_process import judge_in_process

from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox.executor import Job, Outcome
from code_judge_server.sandbox.outcome import Ending

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TIERS)
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[JailExecutor]:
    async with started_executor(tier_or_skip(request.param), num_slots=1) as executor:
        yield executor


async def beside_a_blocked_loop(executor: JailExecutor, job: Job) -> Outcome:
    """Run a job that ends while the event loop is blocked, until it is beyond its limit."""
    running = asyncio.create_task(executor.execute(job))
    started_at = time.monotonic()
    await until_begun(1)
    while num_begun() or time.monotonic() < started_at + job.limits.wall_time_s + 0.1:
        time.sleep(0.01)  # noqa: ASYNC251 - that is what is tested
    return await running


async def test_a_sleeper_beyond_its_limit_is_late_without_a_sample(executor: JailExecutor) -> None:
    outcome = await beside_a_blocked_loop(executor, python(f"{BEGUN}time.sleep(1)", wall_time_s=0.9))
    assert (outcome.ending, outcome.exit_code) == (Ending.WALL_TIME, 0)
    assert outcome.wall_time_s >= 1


async def test_a_program_that_ended_in_time_is_not_late_without_a_sample(executor: JailExecutor) -> None:
    outcome = await beside_a_blocked_loop(executor, python(f"{BEGUN}time.sleep(0.1)", wall_time_s=2))
    assert (outcome.ending, outcome.exit_code) == (Ending.EXITED, 0)


async def test_a_limit_that_no_program_can_keep_is_passed(executor: JailExecutor) -> None:
    for _ in range(5):
        assert (await executor.execute(python("pass", wall_time_s=1e-9))).ending is Ending.WALL_TIME


@pytest.mark.parametrize("isolation", ["A", "D"])
async def test_a_late_server_reports_time_limits(tmp_path: Path, isolation: str) -> None:
    async with judge_in_process(tmp_path, isolation=isolation) as judge:
        assert (await judge.verdict(code="print(1)", limits={"wall_time_s": 1e-9})).status == "time_limit_exceeded"
        sleeping = judge.verdict(id="sleeper", code="import time; time.sleep(0.8)", limits={"wall_time_s": 0.4})
        running = asyncio.create_task(sleeping)
        await asyncio.sleep(0.1)
        time.sleep(1.5)  # noqa: ASYNC251 - that is what is tested
        assert (await running).status == "time_limit_exceeded"
