"""The end of an engine's processes, with any processes instead of vLLM's."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from agentrl.engine.vllm.processes import VllmProcesses
from tests.processes import still_running


def start_sleeper() -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    return process


async def test_the_first_process_to_end_takes_the_engine_down_and_others_do_not_matter() -> None:
    stranger = start_sleeper()
    processes = VllmProcesses()
    first, second = start_sleeper(), start_sleeper()
    try:
        processes.watch()
        stranger.kill()
        await asyncio.to_thread(stranger.join)
        assert not processes.down.done()
        second.kill()
        async with asyncio.timeout(60):
            await processes.down
        first.kill()
        await asyncio.to_thread(first.join)
        processes.note_down()  # a second time, it changes nothing
    finally:
        for process in (stranger, first, second):
            process.kill()


async def test_what_is_left_of_the_processes_and_sockets_is_removed() -> None:
    processes = VllmProcesses()
    socket = Path(processes.socket_folder, "socket")
    os.mknod(socket)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in processes.environment.items():
            patch.setenv(name, value)
        sleeper = start_sleeper()
    stranger = start_sleeper()
    await processes.end()
    assert not socket.parent.exists()
    sleeper.join(60)
    assert sleeper.exitcode == -signal.SIGKILL
    assert stranger.is_alive()
    stranger.kill()


ENGINE = '''
import asyncio, multiprocessing, os, time
from agentrl.engine.vllm.processes import VllmProcesses

CORE = """
import contextlib, time
with contextlib.suppress(ImportError):  # vLLM gives its processes titles where it can
    from setproctitle import setproctitle
    setproctitle("VLLM::EngineCore")
time.sleep(600)
"""

async def main():
    processes = VllmProcesses()
    os.environ |= processes.environment
    child = multiprocessing.get_context("spawn").Process(target=exec, args=(CORE,))
    child.start()
    print(child.pid, processes.socket_folder, flush=True)
    time.sleep(600)

asyncio.run(main())
'''


def test_a_core_that_has_just_begun_to_start_ends_when_its_engine_is_killed() -> None:
    engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    pid, socket_folder = engine.stdout.readline().split()
    core = psutil.Process(int(pid))
    engine.kill()
    engine.wait()
    engine.stdout.close()
    assert still_running([core]) == []
    until = time.monotonic() + 60
    while os.path.exists(socket_folder) and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(socket_folder)
