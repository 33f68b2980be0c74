"""A disk of the run that is full is one line, whoever was to write there."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.checkpoints.full_disk import report_full_disk
from agentrl.cluster.launch import Cluster
from agentrl.config.load import load_run_config
from agentrl.errors import CheckpointError, DiskFullError, WorkerError
from agentrl.guardian import MARK
from agentrl.run.plan import _alive, prepare
from tests.small_disk import fill, small_disk

FULL = OSError(errno.ENOSPC, "No space left on device")
REMOTE = WorkerError("loop worker 0: raised:\nTraceback ...\nOSError: [Errno 28] No space left on device")


QUOTA_OF_A_SERVER = RuntimeError("429 Quota exceeded for quota metric `requests`")


@pytest.mark.parametrize("error", [FULL, REMOTE, ExceptionGroup("two", [ValueError("other"), REMOTE])])
def test_a_full_disk_is_reported_with_the_folder_and_the_way_out(tmp_path: Path, error: Exception):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave_bytes=4096)
        with pytest.raises(DiskFullError) as failure, report_full_disk(disk):
            raise error
    assert str(failure.value) == (
        f"run.dir: {disk}: no space left on its disk, or on that of `TMPDIR`. Make room there; the same command resumes from "
        "the last checkpoint"
    )


@pytest.mark.parametrize("error", [FULL, REMOTE, QUOTA_OF_A_SERVER])
def test_a_disk_with_room_is_not_called_full(tmp_path: Path, error: Exception):
    with pytest.raises(type(error)) as raised, report_full_disk(tmp_path):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("error", [ValueError("a bug"), CheckpointError("/disk: not written: No space left on device")])
def test_what_has_another_reason_or_says_where_stays_what_it_is(tmp_path: Path, error: Exception):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave_bytes=0)
        with pytest.raises(type(error)) as raised, report_full_disk(disk):
            raise error
    assert raised.value is error


@pytest.mark.usefixtures("restored_logging")
async def test_a_run_tells_it_at_its_start_and_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(MARK, raising=False)  # that of a Ray of this process, which comes back afterwards

    @asynccontextmanager
    async def dies(*_: object, **__: object) -> AsyncIterator[Cluster]:
        fill(disk, leave_bytes=0)
        raise FULL
        yield

    with small_disk(tmp_path / "disk") as disk:
        loaded = load_run_config("configs/demo.yaml", [f"run.dir={disk / 'run'}", "tool_config_path=null"])
        fill(disk, leave_bytes=0)
        with pytest.raises(DiskFullError, match=r"disk/run: no space left"):
            prepare(loaded)
        (disk / "fill").unlink()
        plan = prepare(loaded)
        with pytest.raises(DiskFullError, match=r"disk/run: no space left"):
            async with _alive(plan, dies, num_steps=1):
                pytest.fail("it was to fail")
