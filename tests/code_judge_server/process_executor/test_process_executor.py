"""Tier D through its interface: files in, files out, and files that a job cannot bring back."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from code_judge_server.process_executor.executor import ProcessExecutor
from code_judge_server.sandbox.executor import Job, JobLimits
from code_judge_server.sandbox.outcome import Ending

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=2,
    wall_time_s=5,
    memory_bytes=256 * MIB,
    output_bytes=MIB,
    max_tasks=16,
    disk_bytes=MIB,
)


def python(code: str, **job: Any) -> Job:
    """Return the job that runs `code`."""
    files = {"main.py": code.encode(), **job.pop("files", {})}
    return Job(argv=(sys.executable, "main.py"), files=files, limits=job.pop("limits", LIMITS), **job)


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ProcessExecutor]:
    executor = ProcessExecutor(num_slots=1, work_dir=tmp_path)
    await executor.start()
    try:
        yield executor
    finally:
        await executor.aclose()
        assert os.listdir(tmp_path) == []


async def test_files_arrive_executable_below_their_folders(executor: ProcessExecutor) -> None:
    code = "import subprocess; print(open('a/b/text').read(), subprocess.run(['./a/run']).returncode)"
    files = {"a/b/text": b"hello", "a/run": b"#!/bin/sh\nexit 7\n"}
    outcome = await executor.execute(python(code, files=files))
    assert (outcome.ending, outcome.exit_code, outcome.stdout) == (Ending.EXITED, 0, b"hello 7\n")


async def test_only_regular_files_that_fit_are_brought_back(executor: ProcessExecutor, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret"
    secret.write_text("secret")
    code = f"""
import os
os.makedirs('d/e')
open('d/e/out.bin', 'wb').write(bytes(range(256)))
open('large', 'wb').write(b'x' * 5000)
open('sealed', 'w').write('x'); os.chmod('sealed', 0)
os.symlink({str(secret)!r}, 'link')
os.symlink({str(secret.parent)!r}, 'folder')
os.mkfifo('pipe')
os.mkdir('directory')
"""
    wanted = ("d/e/out.bin", "large", "link", "folder/secret", "pipe", "directory", "missing", "main.py/below")
    outcome = await executor.execute(python(code, collect=wanted, collect_bytes=1000))
    assert outcome.files == {"d/e/out.bin": bytes(range(256))}
    secret.unlink()


async def test_a_command_that_fails_is_no_failure_of_the_executor(executor: ProcessExecutor) -> None:
    job = Job(argv=("sh", "-c", "echo no >&2; exit 3"), limits=LIMITS)
    outcome = await executor.execute(job)
    assert (outcome.exit_code, outcome.stderr, outcome.files) == (3, b"no\n", {})


def test_an_earlier_process_outlives_the_executor(tmp_path: Path) -> None:
    async def start_and_close() -> None:
        executor = ProcessExecutor(num_slots=1, work_dir=tmp_path)
        await executor.start()
        await executor.aclose()

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as bystander:
        asyncio.run(start_and_close())
        assert bystander.communicate(b"still here")[0] == b"still here"
