"""A real judge in a process of its own, and checks that it leaves nothing behind."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from ordinary_user import as_ordinary_user

COMMAND = [sys.executable, "-m", "code_judge_server"]
WITHOUT_MODULES = ["--preloads", '{"sympy": [], "sci": []}']
"""Settings of a judge that starts sooner, for tests without a program that imports numpy or sympy."""


class JudgeProcess:
    """A started server: `http` is a client for it, `folder` has its files."""

    def __init__(self, process: subprocess.Popen[str], url: str, folder: Path, headers: dict[str, str]) -> None:
        self.process = process
        self.url = url
        self.folder = folder
        self.http = httpx.Client(base_url=url, timeout=100, headers=headers)

    def judge(self, **submission: Any) -> dict[str, Any]:
        """Judge one program and return its verdict."""
        # An id of its own: the same content under the same id is not judged again.
        return self.judge_batch([{"id": uuid.uuid4().hex, "language": "python", **submission}])[0]

    def judge_batch(self, submissions: list[dict[str, Any]], **batch: Any) -> list[dict[str, Any]]:
        """Judge programs and return their verdicts."""
        reply = self.http.post("/v1/submissions/batch", json={"submissions": submissions, **batch})
        assert reply.status_code == 200, reply.text
        return reply.json()["verdicts"]

    def cpu_time_s(self) -> float:
        """Return the CPU time that the server itself has used, without its slots and their programs."""
        used = psutil.Process(self.process.pid).cpu_times()
        return used.user + used.system

    def wait_until_running(self, num_programs: int = 1) -> None:
        """Wait until `num_programs` programs run."""
        wait_until(lambda: self.http.get("/v1/health").json()["num_running"] == num_programs)


@contextmanager
def running_judge(
    folder: Path,
    *arguments: str,
    isolation: str = "D",
    ordinary_user: bool = False,
    may_set_uid: bool = False,
    environment: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    stderr_to: Path | None = None,
    with_modules: bool = False,
) -> Iterator[JudgeProcess]:
    """Start a judge on a free port, with its files in `folder`; kill it at the end.

    Unless it is `with_modules`, its warm interpreters import nothing, and it starts in half the time.
    """
    tier = ["--require-isolation", isolation, "--use-isolation", isolation]
    if isolation == "D":
        tier.append("--no-fast-path")  # there it would be compiled in vain
    elif not with_modules and "--preloads" not in arguments:
        tier += WITHOUT_MODULES
    command = [*COMMAND, "--port", "0", *tier, "--work-dir", str(folder), *arguments]
    if ordinary_user:
        command = as_ordinary_user(command, folder=folder, may_set_uid=may_set_uid)
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if stderr_to is None else stack.enter_context(stderr_to.open("w")),
            text=True,
            env=os.environ | (environment or {}),
        )
    try:
        yield JudgeProcess(process, _announced_url(process), folder, headers or {})
    finally:
        process.kill()
        process.communicate()


def _announced_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    raise AssertionError(f"the judge did not come up: exit code {process.wait()}")


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait for `condition`; fail if it does not become true, however slow the machine."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


async def until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait for `condition` as `wait_until` does, while the event loop runs."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (a process does it)
            await asyncio.sleep(0.01)


class Gate:
    """A gate for programs of a judge of tier D, which see the files of the test: they wait until it is opened."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"gate-{uuid.uuid4().hex}"

    def code(self, *, then: str = "pass") -> str:
        """Return a program that waits until the gate is open."""
        return f"import os, time\nwhile not os.path.exists({str(self._file)!r}): time.sleep(0.02)\n{then}"

    def open(self) -> None:
        """Let waiting and later programs pass."""
        self._file.touch()


def pids_with(marker: str) -> list[int]:
    """Return the live processes that have `marker` in their command line or work in a folder of that name."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            if marker in words or marker in os.readlink(entry / "cwd"):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids
