"""The setting for disk space: smaller requests are no error, and no submission gets more."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from judge_in_process import JudgeInProcess, judge_in_process

MIB = 1024 * 1024
WRITE = "import sys\nwith open('file', 'wb') as file:\n    file.write(bytes(int(sys.stdin.read())))\nprint('written')"
REASONS = {"A": "No space left on device", "D": "File too large"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["A", "D"])
async def small_disk(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[JudgeInProcess]:
    async with judge_in_process(tmp_path_factory.mktemp("judge"), isolation=request.param, max_disk_mb=2) as judge:
        yield judge


@pytest.mark.parametrize("limits", [{}, {"disk_bytes": 512 * MIB}], ids=["none is asked for", "more is asked for"])
async def test_writes_beyond_the_setting_fail(small_disk: JudgeInProcess, limits: dict[str, int]) -> None:
    verdict = await small_disk.verdict(code=WRITE, stdin=str(3 * MIB), limits=limits)
    assert (verdict.status, verdict.stdout) == ("runtime_error", "")
    assert REASONS[small_disk.tier] in verdict.stderr
    assert verdict.limits is not None
    assert verdict.limits.disk_bytes == 2 * MIB


async def test_writes_within_the_setting_succeed(small_disk: JudgeInProcess) -> None:
    verdict = await small_disk.verdict(code=WRITE, stdin=str(MIB), expected_output="written")
    assert verdict.status == "accepted", verdict.stderr


async def test_a_submission_may_ask_for_less(small_disk: JudgeInProcess) -> None:
    verdict = await small_disk.verdict(code=WRITE, stdin=str(MIB), limits={"disk_bytes": MIB // 2})
    assert verdict.status == "runtime_error"
    assert REASONS[small_disk.tier] in verdict.stderr


@pytest.mark.parametrize("tier", ["A", "D"])
async def test_a_larger_setting_accepts_the_same_program(tmp_path_factory: pytest.TempPathFactory, tier: str) -> None:
    async with judge_in_process(tmp_path_factory.mktemp("judge"), isolation=tier, max_disk_mb=8) as judge:
        verdict = await judge.verdict(code=WRITE, stdin=str(3 * MIB), expected_output="written")
    assert verdict.status == "accepted", verdict.stderr
