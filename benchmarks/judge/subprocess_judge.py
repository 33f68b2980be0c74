"""A judge like most open ones: `python file.py` for every program, as many at once as there are cores.

    python -m benchmarks.judge.subprocess_judge [--bubblewrap]

The peer of the benchmarks. It takes the batches of our judge's native format and answers with the fields that the benchmarks
read. It is as fast as this kind of judging can be without isolation: no shell, no polling, no limit but the wall clock; with
`--bubblewrap` every program gets its own namespaces.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

import aiohttp.web
import orjson
import uvloop

_WALL_TIME_S = 20.0
_BUBBLEWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev")
_BUBBLEWRAP_FOLDERS = ("--proc", "/proc", "--tmpfs", "/tmp", "--bind")


class SubprocessJudge:
    """Judges submissions; each waits for one of `num_slots` places."""

    def __init__(self, *, num_slots: int, bubblewrap: bool) -> None:
        self._slots = asyncio.Semaphore(num_slots)
        self._bubblewrap = bubblewrap

    async def judge(self, submission: dict[str, Any]) -> dict[str, Any]:
        """Run one program and compare what it prints."""
        async with self._slots:
            with tempfile.TemporaryDirectory(prefix="subprocess-judge-") as folder:
                with open(f"{folder}/main.py", "w") as file:  # noqa: ASYNC230  # quicker than a thread would be
                    file.write(submission["code"])
                return await self._run(submission, folder)

    async def _run(self, submission: dict[str, Any], folder: str) -> dict[str, Any]:
        wrapper = [*_BUBBLEWRAP, *_BUBBLEWRAP_FOLDERS, folder, folder] if self._bubblewrap else []
        started_at = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *wrapper,
            sys.executable,
            f"{folder}/main.py",
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(submission.get("limits", {}).get("wall_time_s") or _WALL_TIME_S):
                stdout, stderr = await process.communicate(submission.get("stdin", "").encode())
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return {"id": submission["id"], "status": "time_limit_exceeded"}
        wall_time_s = time.perf_counter() - started_at
        return {
            "id": submission["id"],
            "status": _status(process.returncode, stdout, submission.get("expected_output")),
            "exit_code": process.returncode,
            "stdout": stdout.decode(errors="replace"),
            "stderr": stderr.decode(errors="replace"),
            "wall_time_s": wall_time_s,
        }


def _status(exit_code: int | None, stdout: bytes, expected_output: str | None) -> str:
    if exit_code != 0:
        return "runtime_error"
    if expected_output is not None and stdout.decode(errors="replace").strip() != expected_output.strip():
        return "wrong_answer"
    return "accepted"


async def serve(judge: SubprocessJudge) -> None:
    """Serve on a free port, and print it, until stopped."""

    async def judge_batch(request: aiohttp.web.Request) -> aiohttp.web.Response:
        submissions = orjson.loads(await request.read())["submissions"]
        verdicts = await asyncio.gather(*map(judge.judge, submissions))
        return aiohttp.web.Response(body=orjson.dumps({"verdicts": verdicts}), content_type="application/json")

    app = aiohttp.web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/submissions/batch", judge_batch)
    runner = aiohttp.web.AppRunner(app, access_log=None)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await aiohttp.web.SockSite(runner, listener).start()
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await runner.cleanup()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bubblewrap", action="store_true", help="start every program in bubblewrap")
    options = parser.parse_args()
    if options.bubblewrap and shutil.which("bwrap") is None:
        parser.error("bubblewrap: `bwrap` is not installed")
    num_slots = len(os.sched_getaffinity(0))
    uvloop.run(serve(SubprocessJudge(num_slots=num_slots, bubblewrap=options.bubblewrap)))


if __name__ == "__main__":
    main()
